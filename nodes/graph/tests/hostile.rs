//! Graphs made to hurt: one clear sentence each, in bounded time and memory, never a panic.

mod kinds;

use std::fmt::Write as _;

use kinds::{bad, good, lines, load, options, registry};
use oxiline_graph::{LoadOptions, plan_text};
use proptest::prelude::*;

fn chain(n: usize, last: &str) -> String {
    let mut text = String::from("[nodes.n0]\nuse = \"text.say\"\n");
    for i in 1..n {
        let _ = writeln!(text, "[nodes.n{i}]\nuse = \"text.upper\"\nin = \"n{}\"", i - 1);
    }
    let _ = writeln!(text, "[nodes.end]\nuse = \"text.print\"\nin = \"{last}\"");
    text
}

#[test]
fn ten_thousand_nodes_load() {
    let plan = good(&chain(10_000, "n9999"));
    assert_eq!((plan.nodes.len(), plan.edges.len()), (10_001, 10_000));
    assert!(oxiline_graph::show::dot(&plan).contains("n9999"));
}

#[test]
fn ten_thousand_wrong_nodes_are_a_hundred_sentences() {
    let all = bad(&chain(10_000, "nowhere").replace("text.upper", "text.uper"));
    assert!(all.lines().count() <= 101 && all.contains("did you mean `text.upper`?"), "{}", all.lines().count());
}

#[test]
fn a_circle_of_thousands_is_printed_short() {
    let all = bad(&chain(5_000, "n1").replacen("in = \"n0\"", "in = \"n4999\"", 1));
    let circle = all.lines().find(|l| l.contains("goes in a circle")).unwrap();
    assert!(circle.contains("…") && circle.len() < 400, "{circle}");
}

#[test]
fn a_web_of_forks_and_joins_is_checked_in_bounded_time() {
    let mut text = String::from("[nodes.n0]\nuse = \"text.say\"\n[nodes.n1]\nuse = \"text.say\"\n");
    for i in 2..3_000 {
        let _ = writeln!(
            text,
            "[nodes.n{i}]\nuse = \"text.zip\"\nin = {{ left = \"n{}\", right = \"n{}\" }}",
            i - 1,
            i - 2
        );
    }
    let _ = load(&text);
}

#[test]
fn numbers_and_durations_beyond_reason() {
    let late = |v: &str| bad(&format!("[nodes.a]\nuse = \"text.late\"\nlate = \"{v}\""));
    assert!(late("1000000000000000000s").contains("is longer than any graph can run; use at most 100 years"));
    assert!(late(&format!("{}s", "9".repeat(5_000))).contains("is longer than any graph can run"));
    assert!(late("-1s").contains("is not a duration"));
    assert!(
        bad("[nodes.a]\nuse = \"text.print\"\nin = { text = { from = \"b\", cap = 99999999999999999999 } }")
            .contains("beyond 64 bits")
    );
    assert!(bad("[graph]\ndrain = \"1e18s\"").contains("is not a duration"));
    assert!(bad("[nodes.v]\nuse = \"audio.vad\"\nthreshold = nan").contains("finite"));
    assert!(bad("a = 1979-05-27").contains("date"));
}

#[test]
fn sub_graphs_without_end() {
    let mut files = Vec::new();
    for i in 0..12 {
        files.push((format!("g{i}.toml"), format!("schema = 1\n[nodes.x]\nuse = \"graph:g{}.toml\"", i + 1)));
    }
    files.push(("g12.toml".into(), "schema = 1\n[nodes.x]\nuse = \"text.say\"".into()));
    // Each level twice: 2^n copies if nobody counts.
    for i in 0..8 {
        let two = format!(
            "schema = 1\n[nodes.a]\nuse = \"graph:w{0}.toml\"\n[nodes.b]\nuse = \"graph:w{0}.toml\"\n[nodes.c]\nuse = \"graph:w{0}.toml\"\n[nodes.d]\nuse = \"graph:w{0}.toml\"",
            i + 1
        );
        files.push((format!("w{i}.toml"), two));
    }
    files.push(("w8.toml".into(), "schema = 1\n[nodes.x]\nuse = \"text.say\"".into()));
    files.push(("i0.toml".into(), "import = [\"i0.toml\"]".into()));
    let files: Vec<(&str, &str)> = files.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let said =
        |text: &str| lines(&plan_text("g.toml", text, &registry(), &options(&files)).err().expect("must not load"));
    assert!(said("schema = 1\n[nodes.x]\nuse = \"graph:g0.toml\"").contains("sub-graphs go more than 8 deep"));
    assert!(said("schema = 1\n[nodes.x]\nuse = \"graph:w1.toml\"").contains("grows beyond"));
    assert!(said("schema = 1\nimport = [\"i0.toml\"]").contains("importing `i0.toml` never ends"));
}

#[test]
fn texts_beyond_reason() {
    let long = "x".repeat(3 << 20);
    let all = bad(&format!("[nodes.a]\nuse = \"{long}\""));
    assert!(all.len() < 2_000 && all.contains("there is no node kind"), "{}", all.len());
    let all = bad(&format!("{long} = 1"));
    assert!(all.len() < 2_000, "{}", all.len());
    let mut bomb = String::from("[vars]\nv0 = \"0123456789\"\n");
    for i in 1..40 {
        let _ = writeln!(bomb, "v{i} = \"{}\"", format!("${{v{}}}", i - 1).repeat(10));
    }
    assert!(bad(&format!("{bomb}[nodes.f]\nuse = \"media.read\"\nuri = \"${{v20}}\"")).contains("beyond 1 MiB"));
    let deep = format!("[nodes.a]\nuse = \"text.say\"\nx = {}1{}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(bad(&deep).contains("not TOML"));
    let dots = format!("{}x = 1", "a.".repeat(200_000));
    assert!(bad(&dots).contains("dotted parts"));
    let sets = |key: &str, value: &str| {
        let o = LoadOptions { sets: vec![(key.into(), value.into())], ..options(&[]) };
        plan_text("g.toml", "schema = 1\n[nodes.s]\nuse = \"text.say\"", &registry(), &o)
            .err()
            .map(|m| lines(&m))
            .unwrap_or_default()
    };
    assert!(sets(&"a.".repeat(100_000), "1").len() < 1_000);
    assert!(sets("nodes.s.x", &"[".repeat(100_000)).len() < 1_000);
    assert!(sets("..", "1").contains("is not a key"));
}

const SEED: &str = r#"schema = 1
name = "t"
import = ["m.toml"]
[vars]
input = "a"
n = 3
[graph]
clock = "virtual"
latency_budget = "9s"
on_failure = { max = 2 }
[models.w]
use = "whisper"
weights = "${input}"
batch = { max = 4, wait = "1ms" }
share = { live = 2 }
[scopes.s]
group = "one"
[nodes.t]
use = "audio.tone"
[nodes.a]
use = "asr.transcribe"
model = "w"
scope = "s"
restart = true
in = { audio = { from = "t.audio", cap = { items = 4, time = "2s" }, full = "block" } }
[nodes.p]
use = "graph:part.toml"
in = "port.x"
[nodes.k]
use = "control.keys"
cancels = ["s"]
[ports]
in = { x = "audio" }
out = { y = "a.transcript" }
"#;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_a_plan_or_sentences(text in "\\PC{0,400}") {
        check(&text);
    }

    #[test]
    fn mutated_graphs_are_plans_or_sentences(edits in prop::collection::vec((0usize..1200, 0u8..6, any::<u8>()), 1..12)) {
        let mut bytes = SEED.as_bytes().to_vec();
        for (at, what, byte) in edits {
            let at = at % bytes.len();
            match what {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                2 => bytes.insert(at, byte),
                3 => { let end = (at + usize::from(byte)).min(bytes.len()); bytes.drain(at..end.max(at + 1).min(bytes.len())); }
                4 => { let end = (at + usize::from(byte)).min(bytes.len()); let copy = bytes[at..end].to_vec(); bytes.splice(at..at, copy); }
                _ => bytes[at] = b"=[]{}\".,\n#$"[usize::from(byte) % 11],
            }
            if bytes.is_empty() { bytes.push(b'#'); }
        }
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn lines_in_any_order_are_plans_or_sentences(order in prop::collection::vec(0usize..64, 1..80)) {
        let all: Vec<&str> = SEED.lines().collect();
        let text: Vec<&str> = order.iter().map(|i| all[i % all.len()]).collect();
        check(&text.join("\n"));
    }
}

fn check(text: &str) {
    let part = "schema = 1\n[nodes.g]\nuse = \"audio.gain\"\nin = \"port.x\"\n[ports]\nin = { x = \"audio\" }\nout = { y = \"g\" }";
    let models = "[models.s]\nuse = \"silero-vad\"";
    match plan_text("g.toml", text, &registry(), &options(&[("part.toml", part), ("m.toml", models)])) {
        Ok(plan) => assert!(!oxiline_graph::show::show(&plan).is_empty()),
        Err(messages) => {
            assert!(!messages.is_empty() && messages.len() <= 101);
            for message in messages {
                let line = message.to_string();
                assert!(!line.contains('\n') && line.len() < 1_500, "not a sentence: {line:?}");
            }
        }
    }
}

#[test]
fn the_seed_itself_loads() {
    let part = "schema = 1\n[nodes.g]\nuse = \"audio.gain\"\nin = \"port.x\"\n[ports]\nin = { x = \"audio\" }\nout = { y = \"g\" }";
    let plan = plan_text(
        "g.toml",
        SEED,
        &registry(),
        &options(&[("part.toml", part), ("m.toml", "[models.s]\nuse = \"silero-vad\"")]),
    );
    assert!(plan.is_ok(), "{}", lines(&plan.err().unwrap()));
}
