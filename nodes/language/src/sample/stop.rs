//! Stop strings in text that comes piece by piece.

/// Looks for stop strings across the borders of pieces and holds back what could become one.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    stops: Vec<String>,
    held: String,
    met: bool,
}

impl Stop {
    /// Ends at the first of these; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(), ..Self::default() }
    }

    /// Was a stop string met?
    pub fn met(&self) -> bool {
        self.met
    }

    /// Adds text; gives what is certain to be before any stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.met {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_string();
        }
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.met = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        // The longest end that begins a stop string may still become it.
        let begins = |at: &usize| self.stops.iter().any(|s| s.starts_with(&self.held[*at..]));
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let at = (from..self.held.len()).filter(|at| self.held.is_char_boundary(*at)).find(begins);
        let rest = self.held.split_off(at.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back, when nothing more comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut stop = Stop::new(&stops.iter().map(ToString::to_string).collect::<Vec<_>>());
        let mut out: Vec<String> = pieces.iter().map(|p| stop.push(p)).collect();
        out.push(stop.finish());
        (out, stop.met())
    }

    #[test]
    fn a_stop_across_pieces_is_never_shown() {
        assert_eq!(run(&["STOP"], &["a S", "T", "OP b", "c"]).0.concat(), "a ");
        assert!(run(&["STOP"], &["a S", "T", "OP b"]).1);
        let (out, met) = run(&["STOP"], &["a S", "TO", "x"]);
        assert_eq!((out, met), (vec!["a ".into(), String::new(), "STOx".into(), String::new()], false));
    }

    #[test]
    fn the_earliest_stop_counts_and_held_text_comes_at_the_end() {
        assert_eq!(run(&["zz", "b"], &["abzz"]).0.concat(), "a");
        assert_eq!(run(&["END"], &["the EN"]).0, ["the ", "EN"]);
        assert_eq!(run(&[], &["é", "x"]).0.concat(), "éx");
        assert_eq!(run(&["", "é!"], &["aé", "?"]).0, ["a", "é?", ""]);
        assert_eq!(run(&["aab"], &["a", "a", "a", "b", "c"]).0.concat(), "a");
    }
}
