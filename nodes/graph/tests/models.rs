//! Model actors: sharing, sessions, classes, failures, limits, cancel.

mod common;
use common::*;
use oxiline_graph::actor::WINDOW;
use oxiline_graph::plan::*;
use oxiline_graph::*;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Counts up to the request, one number a step.
struct Count;

#[derive(Clone)]
enum Ask {
    UpTo(u32),
    Fail,
    Panic,
    /// Steps until cancelled, then replies 7 and ends.
    Forever,
}

impl Protocol for Count {
    const NAME: &'static str = "count";
    type Open = Option<mpsc::Receiver<()>>;
    type Request = Ask;
    type Reply = u32;
}

#[derive(Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
struct Options {
    key: String,
    #[serde(skip)]
    #[schemars(skip)]
    hooks: Hooks,
}

#[derive(Default, Clone)]
struct Hooks {
    steps: Arc<Mutex<Vec<Vec<u64>>>>,
    gone: Option<mpsc::Sender<()>>,
}

static LOADS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Counter {
    hooks: Hooks,
    sessions: u64,
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Some(gone) = &self.hooks.gone {
            let _ = gone.send(());
        }
    }
}

struct Stream {
    id: u64,
    at: u32,
}

impl Model for Counter {
    const KIND: &'static str = "counter";
    const ABOUT: &'static str = "Counts.";
    type Options = Options;
    type Protocol = Count;
    type Session = Stream;
    fn identity(options: &Options) -> Result<String> {
        Ok(options.key.clone())
    }
    fn load(options: Options, load: &Load) -> Result<Self> {
        load.progress(1, 2);
        load.check()?;
        if options.key == "corrupt" {
            bail!("weights.safetensors: the header is cut off at byte 8");
        }
        LOADS.lock().unwrap().push(options.key.clone());
        Ok(Self { hooks: options.hooks, sessions: 0 })
    }
    fn open(&mut self, open: Option<mpsc::Receiver<()>>) -> Result<Stream> {
        if let Some(gate) = open {
            // The first message tells the sender that the actor is here, the second lets it go.
            let _ = gate.recv();
            let _ = gate.recv();
        }
        self.sessions += 1;
        Ok(Stream { id: self.sessions, at: 0 })
    }
    fn step(&mut self, jobs: &mut [Job<'_, Self>]) {
        self.hooks.steps.lock().unwrap().push(jobs.iter().map(|j| j.session.id).collect());
        for job in jobs {
            if job.first() {
                job.session.at = 0;
            }
            if job.cancelled() {
                job.reply(7);
                job.finish(Err(Error::Cancelled));
                continue;
            }
            match job.request {
                Ask::Panic => panic!("bad index"),
                Ask::Fail => job.finish(Err(Error::msg("no such token"))),
                Ask::Forever => {}
                Ask::UpTo(n) if job.session.at == *n => job.finish(Ok(())),
                Ask::UpTo(n) => {
                    let at = job.session.at;
                    job.reply(at);
                    job.session.at += 1;
                    if at + 1 == *n {
                        job.finish(Ok(()));
                    }
                }
            }
        }
    }
    fn memory(&self) -> u64 {
        1234
    }
}

fn load(config: ActorConfig) -> (ActorHandle<Count>, Hooks) {
    let hooks = Hooks::default();
    let options = Options { hooks: hooks.clone(), ..Options::default() };
    (ActorHandle::load_with::<Counter>(options, Class::Live, config, &Load::quiet()).unwrap(), hooks)
}

fn planned_model(key: &str, keep: Duration) -> (PlannedModel, Arc<ModelSlot>) {
    let kind: Arc<dyn AnyModelKind> = Arc::new(ModelKind::<Counter>::new());
    let slot = Arc::new(ModelSlot::new("m".into(), kind.clone()));
    let options = serde_json::json!({ "key": key });
    let model = PlannedModel {
        name: "m".into(),
        identity: format!("counter {}", kind.identity(&options).unwrap()),
        kind,
        slot: slot.clone(),
        options,
        class: Class::Live,
        share: [4, 2, 1],
        max_sessions: 8,
        queue: 8,
        batch_max: 4,
        batch_wait: Duration::ZERO,
        keep,
    };
    (model, slot)
}

/// A graph whose one node asks for `n` numbers `times` times.
fn asking(key: &str, ask: Ask, times: u32) -> (Plan, Log) {
    let (model, slot) = planned_model(key, Duration::from_secs(60));
    let mut setup = Setup::new("n".into(), Some(slot));
    let reference = setup.model::<Count>().unwrap();
    let log = Log::default();
    let seen = log.clone();
    let mut planned = node("n", &[], &[], move |_| {
        let mut session = reference.open(None)?;
        for _ in 0..times {
            for reply in session.call(ask.clone())? {
                match reply {
                    Ok(n) => seen.lock().unwrap().push(n.to_string()),
                    Err(error) => {
                        seen.lock().unwrap().push(error.to_string());
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    });
    planned.model = Some(0);
    let mut plan = plan(vec![planned], vec![]);
    plan.models.push(model);
    (plan, log)
}

#[test]
fn two_graphs_share_one_actor_by_identity() {
    let runtime = Runtime::isolated(RunOptions::default());
    let (a, log_a) = asking("shared", Ask::UpTo(3), 2);
    let (b, log_b) = asking("shared", Ask::UpTo(2), 1);
    let (c, _) = asking("other", Ask::UpTo(1), 1);
    let summaries = runtime.run(vec![a, b, c]).unwrap();
    assert!(summaries.iter().all(|s| s.outcome == Outcome::Complete), "{summaries:?}");
    let loads = LOADS.lock().unwrap().clone();
    let of = |key: &str| loads.iter().filter(|k| *k == key).count();
    assert_eq!((of("shared"), of("other")), (1, 1), "one load for each identity");
    assert_eq!(lines(&log_a), ["0", "1", "2", "0", "1", "2"]);
    assert_eq!(lines(&log_b), ["0", "1"]);
    assert_eq!(summaries[0].stats.models[0].memory, 1234);
}

#[test]
fn a_failing_or_panicking_session_leaves_the_others_alone() {
    let (handle, _) = load(ActorConfig { batch_max: 1, ..ActorConfig::default() });
    let mut others: Vec<_> = (0..7).map(|_| handle.open(None).unwrap()).collect();
    let mut bad = handle.open(None).unwrap();
    let error = bad.ask(Ask::Fail).unwrap_err();
    assert_eq!(error.to_string(), "no such token");
    assert_eq!(bad.ask(Ask::UpTo(2)).unwrap(), [0, 1], "an error leaves the session usable");
    let error = bad.ask(Ask::Panic).unwrap_err().to_string();
    assert!(error.contains("model `model` panicked: bad index; the session is closed"), "{error}");
    let error = bad.ask(Ask::UpTo(1)).unwrap_err().to_string();
    assert!(error.contains("closed by an earlier failure"), "{error}");
    for session in &mut others {
        assert_eq!(session.ask(Ask::UpTo(3)).unwrap(), [0, 1, 2]);
    }
    let stats = handle.stats();
    assert_eq!(stats.classes[1].failed, 2);
    assert_eq!(stats.sessions, 8);
}

#[test]
fn a_failing_model_fails_the_graph_with_its_sentence() {
    let runtime = Runtime::isolated(RunOptions::default());
    let (plan, _) = asking("corrupt", Ask::UpTo(1), 1);
    let summary = runtime.start(plan).unwrap().wait();
    assert_eq!(
        summary.error.unwrap(),
        "model `m` cannot be loaded: weights.safetensors: the header is cut off at byte 8"
    );
    let (plan, _) = asking("fails", Ask::Fail, 1);
    let summary = runtime.start(plan).unwrap().wait();
    assert_eq!(summary.error.unwrap(), "node `n` failed: no such token");
}

#[test]
fn classes_share_by_weight_and_a_waiting_person_is_not_starved() {
    let (handle, hooks) = load(ActorConfig { batch_max: 1, ..ActorConfig::default() });
    let mut person = handle.with_class(Class::Interactive).open(None).unwrap();
    let mut batch = handle.with_class(Class::Batch).open(None).unwrap();
    // The gate holds the actor in `open` until both requests are queued.
    let (release, gate) = mpsc::sync_channel(0);
    let holder = std::thread::spawn({
        let handle = handle.clone();
        move || handle.open(Some(gate)).map(drop)
    });
    release.send(()).unwrap();
    let long = batch.call(Ask::UpTo(60)).unwrap();
    let short = person.call(Ask::UpTo(20)).unwrap();
    release.send(()).unwrap();
    holder.join().unwrap().unwrap();
    assert_eq!(short.count(), 20);
    assert_eq!(long.count(), 60);
    let steps = hooks.steps.lock().unwrap().clone();
    let order: String = steps.iter().take(25).map(|s| if s == &[1] { 'i' } else { 'b' }).collect();
    assert_eq!(order, "ibiiiibiiiibiiiibiiiibiii", "4 to 1 while both want to be served");
}

#[test]
fn requests_of_several_sessions_run_as_one_batch() {
    let (handle, hooks) = load(ActorConfig { batch_max: 3, ..ActorConfig::default() });
    let mut sessions: Vec<_> = (0..4).map(|_| handle.open(None).unwrap()).collect();
    let (release, gate) = mpsc::sync_channel(0);
    let holder = std::thread::spawn({
        let handle = handle.clone();
        move || handle.open(Some(gate)).map(drop)
    });
    release.send(()).unwrap();
    let mut sessions = sessions.iter_mut();
    let calls: Vec<_> = sessions.by_ref().map(|s| s.call(Ask::UpTo(6)).unwrap()).collect();
    release.send(()).unwrap();
    holder.join().unwrap().unwrap();
    for call in calls {
        assert_eq!(call.map(|r| r.unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    }
    let sizes: Vec<usize> = hooks.steps.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(sizes, [3; 8], "24 steps of work, three at a time");
    assert_eq!(handle.stats().batches.iter().sum::<u64>() as usize, sizes.len());
}

#[test]
fn limits_refuse_with_a_sentence_that_can_be_told_apart() {
    let (handle, _) = load(ActorConfig { max_sessions: 2, queue: 1, ..ActorConfig::default() });
    let mut first = handle.open(None).unwrap();
    let mut second = handle.open(None).unwrap();
    let error = handle.open(None).map(drop).unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("has 2 sessions open"), "{error}");
    drop(second);
    // The close is done before the next open is looked at, but not before it is counted.
    second = loop {
        match handle.open(None) {
            Ok(session) => break session,
            Err(error) => assert!(error.is_busy()),
        }
        std::thread::yield_now();
    };
    drop(first.call(Ask::UpTo(0)).unwrap());
    assert_eq!(second.ask(Ask::UpTo(1)).unwrap(), [0]);
}

#[test]
fn a_full_queue_refuses_who_does_not_want_to_wait() {
    let (handle, _) = load(ActorConfig { queue: 1, ..ActorConfig::default() });
    let (mut first, mut second) = (handle.open(None).unwrap(), handle.open(None).unwrap());
    let (release, gate) = mpsc::sync_channel(0);
    let holder = std::thread::spawn({
        let handle = handle.clone();
        move || handle.open(Some(gate)).map(drop)
    });
    release.send(()).unwrap();
    let waiting = first.call(Ask::UpTo(2)).unwrap();
    let error = second.try_call(Ask::UpTo(1)).map(drop).unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("has 1 requests waiting"), "{error}");
    release.send(()).unwrap();
    holder.join().unwrap().unwrap();
    assert_eq!(waiting.count(), 2);
    assert_eq!(second.ask(Ask::UpTo(1)).unwrap(), [0]);
}

#[test]
fn unread_replies_hold_the_job_not_the_actor() {
    let (handle, hooks) = load(ActorConfig { batch_max: 1, ..ActorConfig::default() });
    let (mut slow, mut other) = (handle.open(None).unwrap(), handle.open(None).unwrap());
    let call = slow.call(Ask::UpTo(1000)).unwrap();
    // By the time the other session has had 500 steps the first had as many turns.
    assert_eq!(other.ask(Ask::UpTo(500)).unwrap().len(), 500);
    let steps = hooks.steps.lock().unwrap().iter().filter(|s| *s == &[1]).count();
    assert!(steps <= WINDOW, "{steps} steps for a client that reads nothing");
    assert_eq!(call.count(), 1000, "and it all comes once it reads");
}

#[test]
fn dropping_a_call_gives_the_request_up() {
    let (handle, _) = load(ActorConfig::default());
    let mut session = handle.open(None).unwrap();
    drop(session.call(Ask::Forever).unwrap());
    assert_eq!(session.ask(Ask::UpTo(2)).unwrap(), [0, 1]);
    let call = session.call(Ask::Forever).unwrap();
    call.cancel();
    let replies: Vec<Result<u32>> = call.collect();
    assert!(matches!(replies.last(), Some(Err(Error::Cancelled))), "{replies:?}");
}

#[test]
fn the_actor_ends_with_its_last_user() {
    let (gone, told) = mpsc::channel();
    let hooks = Hooks { gone: Some(gone), ..Hooks::default() };
    let handle = ActorHandle::<Count>::load::<Counter>(Options { hooks, ..Options::default() }, Class::Batch).unwrap();
    let mut session = handle.open(None).unwrap();
    drop(handle);
    assert_eq!(session.ask(Ask::UpTo(1)).unwrap(), [0], "a session keeps it");
    drop(session);
    told.recv().expect("the model is dropped");
}

#[test]
fn cancelling_a_graph_wakes_a_node_that_waits_for_a_model() {
    let runtime = Runtime::isolated(RunOptions::default());
    let (plan, log) = asking("forever", Ask::Forever, 1);
    let handle = runtime.start(plan).unwrap();
    // Wait until it waits for the model, then pull the plug.
    while handle.stats().models.first().is_none_or(|m| m.classes[1].steps == 0) {
        std::thread::yield_now();
    }
    handle.cancel();
    let summary = handle.wait();
    assert_eq!(summary.outcome, Outcome::Stopped, "{summary}");
    assert_eq!(lines(&log), ["7", "cancelled"], "what was whole comes first");
}

#[test]
fn a_node_finds_out_that_the_model_speaks_something_else() {
    struct Other;
    impl Protocol for Other {
        const NAME: &'static str = "other";
        type Open = ();
        type Request = ();
        type Reply = ();
    }
    let (_, slot) = planned_model("x", Duration::ZERO);
    let error = Setup::new("n".into(), Some(slot)).model::<Other>().map(drop).unwrap_err();
    assert!(error.to_string().contains("needs a model that speaks `other`, but `[models.m]` is a `counter`"));
}
