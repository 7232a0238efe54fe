//! Where the thread of a node runs: on which cores, and with what share of them.
//!
//! A node is one thread; what it starts itself inherits both. The arithmetic of models is not
//! placed by this: it runs on the process's one pool.

/// How the system's scheduler treats a node's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// After everything else (nice 10): background work.
    Low,
    /// As the program was started.
    #[default]
    Normal,
    /// Before everything else (nice -10); the system may refuse it to an ordinary user.
    High,
}

/// The `cpu` and `priority` of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// Cores the thread may use (empty: all the program may use).
    pub cores: Vec<usize>,
    /// Its priority.
    pub priority: Priority,
}

/// The cores this program may use; `None` where threads cannot be placed.
#[cfg(target_os = "linux")]
pub(crate) fn usable() -> Option<Vec<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// The cores this program may use; `None` where threads cannot be placed.
#[cfg(not(target_os = "linux"))]
pub(crate) fn usable() -> Option<Vec<usize>> {
    None
}

/// Places the calling thread; what the system refuses comes back as ends of sentences.
#[cfg(target_os = "linux")]
pub(crate) fn place(placement: &Placement) -> Vec<String> {
    use rustix::process::setpriority_process;
    use rustix::thread::{CpuSet, gettid, sched_setaffinity};
    let mut refused = Vec::new();
    if !placement.cores.is_empty() {
        let mut set = CpuSet::new();
        placement.cores.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| set.set(core));
        if let Err(error) = sched_setaffinity(None, &set) {
            refused.push(format!("cannot be kept on {} ({error}); it runs on any core", cores(&placement.cores)));
        }
    }
    let nice = match placement.priority {
        Priority::Low => 10,
        Priority::Normal => return refused,
        Priority::High => -10,
    };
    // On Linux a nice value belongs to a thread, named by its id.
    if let Err(error) = setpriority_process(Some(gettid()), nice) {
        let word = if nice < 0 { "high" } else { "low" };
        refused.push(format!("cannot have the priority \"{word}\" ({error}); it runs at the normal one"));
    }
    refused
}

/// Places the calling thread; what the system refuses comes back as ends of sentences.
#[cfg(not(target_os = "linux"))]
pub(crate) fn place(placement: &Placement) -> Vec<String> {
    match *placement == Placement::default() {
        true => Vec::new(),
        false => vec!["cannot be placed on this system; it runs like the others".into()],
    }
}

/// `core 3`, `cores 0-3 and 6`.
pub(crate) fn cores(list: &[usize]) -> String {
    let mut sorted = list.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for core in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let words: Vec<String> =
        runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    let many = runs.len() > 1 || runs.iter().any(|(a, b)| a != b);
    let text = match words.split_last() {
        None => "no core".into(),
        Some((only, [])) => only.clone(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
    };
    format!("{} {text}", if many { "cores" } else { "core" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_named_as_runs() {
        assert_eq!(cores(&[3]), "core 3");
        assert_eq!(cores(&[0, 1]), "cores 0-1");
        assert_eq!(cores(&[6, 0, 2, 1, 1]), "cores 0-2 and 6");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_placed_and_says_where() {
        let core = usable().expect("Linux says")[0];
        let placed = std::thread::spawn(move || {
            let refused = place(&Placement { cores: vec![core], priority: Priority::Low });
            let nice = rustix::process::getpriority_process(Some(rustix::thread::gettid())).expect("Linux says");
            (refused, usable().expect("Linux says"), nice)
        });
        let before = rustix::process::getpriority_process(Some(rustix::thread::gettid())).expect("Linux says");
        let (refused, allowed, nice) = placed.join().expect("does not panic");
        assert_eq!(allowed, [core]);
        // A program started nicer than that may not become less so.
        assert_eq!((refused.is_empty(), nice), if before <= 10 { (true, 10) } else { (false, before) });
        assert!(usable().expect("Linux says").contains(&core), "the test's own thread stays where it was");
    }
}
