//! Every sentence the loader must be able to say, with its place and its advice.

mod kinds;

use kinds::{bad, good, lines, load, options, registry};
use oxiline_graph::{LoadOptions, plan_file, plan_text};

#[track_caller]
fn says(text: &str, wanted: &str) {
    let all = bad(text);
    assert!(all.lines().any(|l| l == wanted), "wanted\n{wanted}\ngot\n{all}");
}

#[track_caller]
fn warns(text: &str, wanted: &str) {
    let notes = good(text).notes.join("\n");
    assert!(notes.lines().any(|l| l == wanted), "wanted\n{wanted}\ngot\n{notes}");
}

const SAY: &str = "[nodes.say]\nuse = \"text.say\"\n";

#[test]
fn unknown_node_kind() {
    says(
        "[nodes.a]\nuse = \"audio.resampel\"",
        "g.toml:3:7: there is no node kind `audio.resampel`; did you mean `audio.resample`?",
    );
    says(
        "[nodes.a]\nuse = \"resample\"",
        "g.toml:3:7: there is no node kind `resample`; did you mean `audio.resample`?",
    );
    says(
        "[nodes.a]\nuse = \"whisper\"",
        "g.toml:3:7: there is no node kind `whisper`; that is a kind of model, for `[models.NAME]`",
    );
    says("[nodes.a]\nrate = 3", "g.toml:2:8: node `a` does not say what it is; add `use = \"KIND\"`");
}

#[test]
fn unknown_key() {
    says("nods = 1", "g.toml:2:1: a graph file has no key `nods`; did you mean `nodes`?");
    says("[graph]\nclok = \"auto\"", "g.toml:3:1: `graph` has no key `clok`; did you mean `clock`?");
    says(
        "[nodes.a]\nuse = \"audio.vad\"\ntreshold = 0.4",
        "g.toml:4:1: `audio.vad` has no option `treshold`; did you mean `threshold`?",
    );
    says(
        "[nodes.a]\nuse = \"text.print\"\nin = { text = { from = \"b\", ful = \"block\" } }",
        "g.toml:4:29: `a.text` has no key `ful`; did you mean `full`?",
    );
    says(
        "[nodes.a]\nuse = \"text.say\"\ncolor = 1",
        "g.toml:4:1: `text.say` has no option `color`; it takes no options",
    );
}

#[test]
fn wrong_types_and_values() {
    let vad = |line: &str| format!("[nodes.v]\nuse = \"audio.vad\"\n{line}");
    says(
        &vad("threshold = \"high\""),
        "g.toml:4:13: `threshold` of `audio.vad` wants a number, but got the text \"high\"",
    );
    says(
        &vad("min_silence = 300"),
        "g.toml:4:15: `min_silence` of `audio.vad` wants text in quotes, but got the number 300",
    );
    says(
        &vad("min_silence = \"300\""),
        "g.toml:4:15: `min_silence` of `audio.vad`: `300` is not a duration; write it like \"250ms\", \"2s\" or \"1m\"",
    );
    says(
        &vad("max_segment = \"28\""),
        "g.toml:4:15: `max_segment` of `audio.vad`: `28` is not a duration; write it like \"250ms\", \"2s\" or \"1m\"",
    );
    says(&vad("gate = \"cutt\""), "g.toml:4:8: `gate` of `audio.vad` cannot be \"cutt\"; did you mean `cut`?");
    says(
        "[nodes.r]\nuse = \"audio.resample\"\nrate = 0",
        "g.toml:4:8: `rate` of `audio.resample` wants a number from 1 to 768000, but got the number 0",
    );
    says(
        "[nodes.a]\nuse = \"asr.transcribe\"\ntemperatures = [0.0, \"x\"]",
        "g.toml:4:22: `temperatures[1]` of `asr.transcribe` wants a number, but got the text \"x\"",
    );
    says("[nodes.f]\nuse = \"media.read\"", "g.toml:2:8: `media.read` needs the option `uri` (The file to read)");
    says("[graph]\nclock = \"vitual\"", "g.toml:3:9: `clock` cannot be \"vitual\"; did you mean `virtual`?");
    says("[nodes.a]\nuse = \"test.refuses\"", "g.toml:2:8: node `a`: it is not the day for that");
    says(
        "[nodes.a]\nuse = \"test.panics\"",
        "g.toml:2:8: node `a`: the code of `test.panics` panicked while declaring its ports; report it",
    );
}

#[test]
fn inputs_and_outputs() {
    says(
        &format!("{SAY}[nodes.p]\nuse = \"text.print\""),
        "g.toml:4:8: the input `p.text` (text) is not connected; add `in = \"say.text\"`",
    );
    says(
        &format!("{SAY}[nodes.z]\nuse = \"text.zip\"\nin = {{ left = \"say\" }}"),
        "g.toml:4:8: the input `z.right` (text) is not connected; add `in = { right = \"say.text\" }`",
    );
    says(
        &format!("{SAY}[nodes.z]\nuse = \"text.zip\"\nin = \"say\""),
        "g.toml:6:6: node `z` has several inputs, `left`, `right` and `hint`; name one: `in = { left = ... }`",
    );
    says(
        &format!("{SAY}[nodes.p]\nuse = \"text.print\"\nin = \"sya\""),
        "g.toml:6:6: there is no node `sya`; did you mean `say`?",
    );
    says(
        &format!("{SAY}[nodes.p]\nuse = \"text.print\"\nin = \"say.txt\""),
        "g.toml:6:6: node `say` (`text.say`) has no output `txt`; did you mean `text`?",
    );
    says(
        &format!("{SAY}[nodes.p]\nuse = \"text.print\"\nin = {{ txt = \"say\" }}"),
        "g.toml:6:8: node `p` (`text.print`) has no input `txt`; did you mean `text`?",
    );
    says(
        "[models.s]\nuse = \"silero-vad\"\n[nodes.t]\nuse = \"audio.tone\"\n[nodes.v]\nuse = \"audio.vad\"\nmodel = \"s\"\nin = \"t\"\n[nodes.k]\nuse = \"tap\"\nin = \"v\"",
        "g.toml:12:6: node `v` has several outputs, `speech` and `events`; name one: `v.speech`",
    );
    warns(SAY, "g.toml:2:8: warning: `say.text` is never used: `say` works for nothing; connect it or remove the node");
}

#[test]
fn types_that_do_not_fit() {
    says(
        "[nodes.f]\nuse = \"media.read\"\nuri = \"x\"\n[nodes.g]\nuse = \"audio.gain\"\nin = \"f\"\n[nodes.t]\nuse = \"tap\"\nin = \"g\"",
        "g.toml:7:6: `g.audio` wants audio of any form, but `f.audio` gives packet; put `audio.decode` between them",
    );
    says(
        "[nodes.f]\nuse = \"media.read\"\nuri = \"x\"\n[nodes.c]\nuse = \"caption.write\"\nin = \"f\"",
        "g.toml:7:6: `c.transcript` wants transcript, but `f.audio` gives packet; put `audio.decode` → `asr.transcribe` between them",
    );
    says(
        &format!("{SAY}[nodes.g]\nuse = \"audio.gain\"\nin = \"say\"\n[nodes.t]\nuse = \"tap\"\nin = \"g\""),
        "g.toml:6:6: `g.audio` wants audio of any form, but `say.text` gives text; no node turns one into the other; connect another output",
    );
    let vad = "[models.s]\nuse = \"silero-vad\"\n[nodes.f]\nuse = \"media.read\"\nuri = \"x\"\n[nodes.d]\nuse = \"audio.decode\"\nin = \"f\"\n[nodes.v]\nuse = \"audio.vad\"\nmodel = \"s\"\nin = \"d\"\n";
    warns(
        vad,
        "g.toml:13:6: note: `audio.resample` is put between `d.audio` (audio of any form) and `v.audio`, which wants audio 16000 Hz mono",
    );
    says(
        &format!("{vad}[graph]\nauto_convert = false"),
        "g.toml:13:6: `v.audio` wants audio 16000 Hz mono, but `d.audio` gives audio of any form; put `audio.resample` between them, or set `auto_convert = true` in [graph]",
    );
    says(
        "[nodes.f]\nuse = \"media.read\"\nuri = \"x\"\n[nodes.d]\nuse = \"audio.decode\"\nin = \"f\"\n[nodes.s]\nuse = \"audio.stuck\"\nin = \"d\"",
        "g.toml:10:6: `s.audio` cannot follow a change of form, and what `d.audio` gives is known only while it runs; put `audio.resample` with `rate` and `channels` between them",
    );
}

#[test]
fn circles() {
    says(
        "[nodes.a]\nuse = \"text.upper\"\nin = \"c\"\n[nodes.b]\nuse = \"text.upper\"\nin = \"a\"\n[nodes.c]\nuse = \"text.upper\"\nin = \"b\"",
        "g.toml:4:6: the graph goes in a circle: a → b → c → a; mark the edge that closes it `feedback = true` with `full = \"latest\"` or \"drop-oldest\"",
    );
    says(
        "[nodes.a]\nuse = \"text.upper\"\nin = \"a\"",
        "g.toml:4:6: the graph goes in a circle: a → a; mark the edge that closes it `feedback = true` with `full = \"latest\"` or \"drop-oldest\"",
    );
    says(
        "[nodes.a]\nuse = \"text.upper\"\nin = { text = { from = \"a\", feedback = true } }",
        "g.toml:4:15: the feedback edge `a.text` → `a.text` has `full = \"block\"`, so its circle could wait for itself forever; use \"latest\" or \"drop-oldest\"",
    );
    good("[nodes.a]\nuse = \"text.upper\"\nin = { text = { from = \"a\", feedback = true, full = \"drop-oldest\" } }");
}

#[test]
fn scopes() {
    says(
        "[nodes.k]\nuse = \"control.keys\"\ncancels = [\"reply\"]",
        "g.toml:4:11: `cancels` names the scope `reply`, which no node belongs to; put `scope = \"reply\"` on the nodes it should stop",
    );
    says(
        &format!(
            "{SAY}[nodes.u]\nuse = \"text.upper\"\nin = \"say\"\nscope = \"reply\"\n[nodes.k]\nuse = \"control.keys\"\ncancels = [\"repyl\"]"
        ),
        "g.toml:10:11: `cancels` names the scope `repyl`, which no node belongs to; did you mean `reply`?",
    );
    says(
        &format!("{SAY}[nodes.p]\nuse = \"text.print\"\nin = \"say\"\nscope = \"reply\""),
        "g.toml:7:9: node `p` cannot belong to a scope: `text.print` cannot be cancelled in the middle of its work; leave `scope` out",
    );
}

#[test]
fn latency_budget() {
    let graph = |budget: &str| {
        format!(
            "[graph]\nlatency_budget = \"{budget}\"\n{SAY}[nodes.a]\nuse = \"text.late\"\nlate = \"1500ms\"\nin = \"say\"\n[nodes.b]\nuse = \"text.late\"\nlate = \"2s\"\nin = \"a\"\n[nodes.p]\nuse = \"text.print\"\nin = \"b\""
        )
    };
    says(
        &graph("3s"),
        "g.toml:3:18: what reaches `p` may be 3500ms late, more than `latency_budget = \"3s\"`: `b` 2s, `a` 1500ms; make the largest smaller or raise the budget",
    );
    good(&graph("3500ms"));
}

#[test]
fn forks_that_starve_their_join() {
    let graph = |cap: &str| {
        format!(
            "{SAY}[nodes.slow]\nuse = \"text.late\"\nlate = \"3s\"\nin = \"say\"\n[nodes.z]\nuse = \"text.zip\"\nin = {{ left = \"slow\", right = {{ from = \"say\", cap = {cap} }} }}"
        )
    };
    says(
        &graph("\"1s\""),
        "g.toml:10:31: `z` could starve: what reaches `z.left` from `say` comes up to 3s late, but the branch to `z.right` keeps only 1s; raise a `cap` on it by 2s",
    );
    good(&graph("\"3s\""));
    // Items say nothing about time.
    good(&graph("2"));
}

#[test]
fn models() {
    let graph = |weights: &str, model: &str| {
        format!(
            "[models.w]\nuse = \"whisper\"\nweights = \"{weights}\"\n[nodes.t]\nuse = \"audio.tone\"\n[nodes.a]\nuse = \"asr.transcribe\"\nmodel = \"{model}\"\nin = \"t\"\n[nodes.c]\nuse = \"caption.write\"\nin = \"a\""
        )
    };
    good(&graph("here", "w"));
    says(
        &graph("absent-base", "w"),
        "g.toml:4:11: model `w`: `absent-base` is not on this machine; fetch it: `oxiline models pull absent-base`",
    );
    says(&graph("bad", "w"), "g.toml:4:11: model `w`: `bad` is no name of weights");
    warns(
        &graph("remote-base", "w"),
        "g.toml:4:11: warning: model `w`: `remote-base` is not on this machine; it is fetched when the graph runs, or now with `oxiline models pull remote-base`",
    );
    says(&graph("here", "v"), "g.toml:9:9: there is no model `v`; there is `w`");
    says(
        "[nodes.t]\nuse = \"audio.tone\"\n[nodes.a]\nuse = \"asr.transcribe\"\nin = \"t\"",
        "g.toml:4:8: node `a` needs a model that speaks `transcribe`: add `model = \"NAME\"` and a `[models.NAME]` table",
    );
    says(
        "[models.s]\nuse = \"silero-vad\"\n[nodes.t]\nuse = \"audio.tone\"\n[nodes.a]\nuse = \"asr.transcribe\"\nmodel = \"s\"\nin = \"t\"",
        "g.toml:6:8: node `a` needs a model that speaks `transcribe`, but `[models.s]` is a `silero-vad`, which speaks `judge`",
    );
    says("[models.w]\nuse = \"wisper\"", "g.toml:3:7: there is no model kind `wisper`; did you mean `whisper`?");
    let missing = LoadOptions { allow_missing_models: true, ..options(&[]) };
    let text = format!("schema = 1\n{}", graph("absent-base", "w"));
    assert!(plan_text("g.toml", &text, &registry(), &missing).is_ok());
    warns(
        &format!("{SAY}[models.s]\nuse = \"silero-vad\""),
        "g.toml:4:9: warning: no node uses the model `s`, so it is not loaded",
    );
}

#[test]
fn two_writers() {
    let writer = |name: &str, to: &str| format!("[nodes.{name}]\nuse = \"caption.write\"\nin = \"a\"\nto = \"{to}\"\n");
    let asr = "[models.w]\nuse = \"whisper\"\nweights = \"x\"\n[nodes.t]\nuse = \"audio.tone\"\n[nodes.a]\nuse = \"asr.transcribe\"\nmodel = \"w\"\nin = \"t\"\n";
    says(
        &format!("{asr}{}{}", writer("c", "a.srt"), writer("d", "./a.srt")),
        "g.toml:15:8: `c` and `d` both write `./a.srt`; give one of them another file",
    );
    says(
        &format!("{asr}{}{}", writer("c", "-"), writer("d", "-")),
        "g.toml:15:8: `c` and `d` both write standard output; give one of them another file",
    );
    good(&format!("{asr}{}{}", writer("c", "a.srt"), writer("d", "b.srt")));
}

#[test]
fn capacities_and_policies() {
    let edge =
        |keys: &str| format!("{SAY}[nodes.p]\nuse = \"text.print\"\nin = {{ text = {{ from = \"say\", {keys} }} }}");
    says(
        &edge("cap = 0"),
        "g.toml:6:37: `cap of p.text` is 0: nothing could ever pass; use at least 1 item, or a time or size above zero",
    );
    says(
        &edge("cap = \"0s\""),
        "g.toml:6:37: `cap of p.text` is 0: nothing could ever pass; use at least 1 item, or a time or size above zero",
    );
    says(
        &edge("cap = -1"),
        "g.toml:6:37: `cap of p.text` wants a number of items, a time (\"2s\") or a size (\"8MiB\"), but got the number -1",
    );
    says(
        &edge("cap = \"2 parsecs\""),
        "g.toml:6:37: `cap of p.text` wants a number of items, a time (\"2s\") or a size (\"8MiB\"), but got the text \"2 parsecs\"",
    );
    says(&edge("full = \"blok\""), "g.toml:6:38: `full` cannot be \"blok\"; did you mean `block`?");
    says(
        &edge("full = \"degrade\""),
        "g.toml:6:38: `full = \"degrade\"` needs a consumer that can widen its step, which comes with live audio; use \"block\" or \"drop-oldest\"",
    );
    good(&edge("cap = { items = 4, time = \"2s\", bytes = \"8MiB\" }, full = \"latest\""));
    says(
        &format!("{SAY}[nodes.p]\nuse = \"text.print\"\nin = \"say\"\nbypass = \"pass\""),
        "g.toml:7:10: node `p` cannot be bypassed with \"pass\": that needs one input and one output of the same type; use \"mute\"",
    );
}

#[test]
fn syntax() {
    let all = bad("[nodes.a\nuse = 1");
    assert!(all.starts_with("g.toml:2:9: this is not TOML: "), "{all}");
    let all = bad("[nodes.a]\nuse = \"text.say\"\n[nodes.a]\nuse = \"text.say\"");
    assert!(all.starts_with("g.toml:4:") && all.contains("is declared twice"), "{all}");
    says(
        "[nodes.\"a.b\"]\nuse = \"text.say\"",
        "g.toml:2:8: `a.b` cannot name one of the nodes; use letters, digits, `-` and `_` (and not `port`)",
    );
    let none = plan_text("g.toml", "name = \"x\"", &registry(), &options(&[])).err().unwrap();
    assert_eq!(
        none[0].to_string(),
        "g.toml:1:1: the file does not say which schema it follows; write `schema = 1` at its top"
    );
    let two = plan_text("g.toml", "schema = 2", &registry(), &options(&[])).err().unwrap();
    assert_eq!(
        two[0].to_string(),
        "g.toml:1:10: `schema` is the number 2, but this version reads schema 1; write `schema = 1`"
    );
    let empty = lines(&load("").err().unwrap());
    assert!(empty.contains("the graph has no nodes"), "{empty}");
}

#[test]
fn variables() {
    says(
        "[nodes.f]\nuse = \"media.read\"\nuri = \"${inptu}\"\n[vars]\ninput = \"x\"",
        "g.toml:4:7: there is no variable `inptu`; did you mean `input`?",
    );
    says(
        "[nodes.f]\nuse = \"media.read\"\nuri = \"${env:NOBODY}\"",
        "g.toml:4:7: the environment has no variable `NOBODY`; set it, or use a `[vars]` entry instead",
    );
    says(
        "[vars]\na = \"${b}\"\nb = \"${a}\"\n[nodes.f]\nuse = \"media.read\"\nuri = \"${a}\"",
        "g.toml:3:5: the variables go in a circle: a → b → a; give one of them a plain value",
    );
    let set = |k: &str, v: &str| LoadOptions { sets: vec![(k.into(), v.into())], ..options(&[]) };
    let text = "schema = 1\n[vars]\nrate = 3\n[nodes.say]\nuse = \"text.say\"";
    let said = |o: &LoadOptions| lines(&plan_text("g.toml", text, &registry(), o).err().expect("must not load"));
    assert_eq!(said(&set("rat", "4")), "`--set rat=...`: the graph has no such variable; did you mean `rate`?\n");
    assert_eq!(
        said(&set("rate", "fast")),
        "the variable `rate` is a whole number in the graph file, but was given the text \"fast\"\n"
    );
    assert_eq!(said(&set("nodes.sya.x", "4")), "`--set nodes.sya.x=...`: there is no `sya`; did you mean `say`?\n");
    assert_eq!(
        said(&set("nodes.say/x.y", "4")),
        "`--set` names `nodes.x.y` inside `say`, but no sub-graph node has that name\n"
    );
}

#[test]
fn sub_graphs() {
    let part = "schema = 1\n[vars]\nlanguage = \"auto\"\n[models.w]\nuse = \"whisper\"\nweights = \"x\"\n[nodes.a]\nuse = \"asr.transcribe\"\nmodel = \"w\"\nlanguage = \"${language}\"\nin = \"port.sound\"\n[ports]\nin = { sound = \"audio\" }\nout = { transcript = \"a.transcript\" }";
    let with = |node: &str| {
        let text = format!(
            "schema = 1\n[nodes.t]\nuse = \"audio.tone\"\n[nodes.say]\nuse = \"text.say\"\n[nodes.s]\nuse = \"graph:part.toml\"\n{node}\n[nodes.c]\nuse = \"caption.write\"\nin = \"s\""
        );
        plan_text(
            "d/g.toml",
            &text,
            &registry(),
            &options(&[("d/part.toml", part), ("d/self.toml", "schema = 1\n[nodes.x]\nuse = \"graph:self.toml\"")]),
        )
    };
    let said = |node: &str| lines(&with(node).err().expect("must not load"));
    assert!(with("in = { sound = \"t\" }").is_ok());
    assert!(with("in = \"t\"\nlanguage = \"de\"").is_ok());
    for (node, wanted) in [
        (
            "in = { sund = \"t\" }",
            "d/g.toml:8:8: the sub-graph of node `s` has no input port `sund`; did you mean `sound`?",
        ),
        (
            "",
            "d/g.toml:6:8: the input port `sound` of the sub-graph node `s` is not connected; add `in = { sound = \"NODE.PORT\" }`",
        ),
        ("in = \"say\"", "d/part.toml:11:6: `s.sound` is a port for audio, but `say.text` gives text"),
        (
            "in = \"t\"\nlang = \"de\"",
            "d/g.toml:9:1: `part.toml` has no variable `lang` for node `s` to set; did you mean `language`?",
        ),
        ("in = \"t\"\nmodel = \"ears\"", "d/g.toml:9:9: there is no model `ears`; add `[models.ears]`"),
        ("in = \"t\"\nmodels.v = \"ears\"", "d/g.toml:9:8: the sub-graph of node `s` has no model `v`; there is `w`"),
        (
            "in = \"t\"\nbypass = \"mute\"",
            "d/g.toml:9:1: `bypass` belongs to a node inside `part.toml`, not to the sub-graph node `s`; move it there",
        ),
        (
            "in = \"t\"\n[nodes.q]\nuse = \"graph:nowhere.toml\"",
            "d/g.toml:10:7: node `q` cannot use `nowhere.toml`: there is no such file; check the path",
        ),
        (
            "in = \"t\"\n[nodes.q]\nuse = \"graph:self.toml\"",
            "d/self.toml:3:7: `self.toml` is used inside itself by node `q/x`; a graph cannot contain itself",
        ),
        (
            "in = \"t\"\n[nodes.q]\nuse = \"text.print\"\nin = \"s.txt\"",
            "d/g.toml:11:6: the sub-graph of node `s` has no output port `txt`; there is `transcript`",
        ),
    ] {
        let all = said(node);
        assert!(all.lines().any(|l| l == wanted), "for {node}\nwanted\n{wanted}\ngot\n{all}");
    }
}

#[test]
fn files_that_are_no_graphs() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        lines(&plan_file(&path, &registry(), &options(&[])).err().expect("must not load"))
    };
    assert!(at("latin.toml", b"name = \"\xe9\"").contains("the byte at offset 8 is not UTF-8; save the file as UTF-8"));
    assert!(at("nul.toml", b"a = 1\n\0").contains("nul.toml:2:1: there is a NUL byte at offset 6"));
    let none = lines(&plan_file(&dir.path().join("none.toml"), &registry(), &options(&[])).err().unwrap());
    assert!(none.ends_with("none.toml: there is no such file; check the path\n"), "{none}");
    let folder = lines(&plan_file(dir.path(), &registry(), &options(&[])).err().unwrap());
    assert!(folder.ends_with(": this is a folder, not a graph file\n"), "{folder}");
}

#[test]
fn joins_by_turn() {
    says(
        "[nodes.say]\nuse = \"text.say\"\n[nodes.z]\nuse = \"text.zip\"\nin = { left = \"say\", right = { from = \"say\", sync = \"turn\" } }",
        "g.toml:6:53: `text.zip` cannot join its inputs by turn, as node `z` is asked to; leave `sync` out",
    );
    says(
        "[nodes.say]\nuse = \"text.say\"\n[nodes.c]\nuse = \"chat.compose\"\nin = { text = \"say\", extra = { from = \"say\", sync = \"trun\" } }",
        "g.toml:6:53: `sync` cannot be \"trun\"; did you mean `turn`?",
    );
    let plan = good(
        "[nodes.a]\nuse = \"text.say\"\n[nodes.b]\nuse = \"text.say\"\n[nodes.c]\nuse = \"chat.compose\"\nin = { text = \"a\", extra = { from = \"b\", sync = \"turn\" } }",
    );
    assert_eq!(plan.edges.iter().map(|e| e.by_turn).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn one_thread_a_node() {
    says(
        "[nodes.say]\nuse = \"text.say\"\nthreads = 4",
        "g.toml:4:1: node `say` works on one thread of its own, as every `text.say` does; leave `threads` out",
    );
    good("[nodes.say]\nuse = \"text.say\"\nthreads = 1\n[nodes.p]\nuse = \"text.print\"\nin = \"say\"");
}

#[cfg(target_os = "linux")]
#[test]
fn placement() {
    use oxiline_graph::plan::{Placement, Priority};
    let print = "[nodes.p]\nuse = \"text.print\"\nin = \"say\"";
    says(
        &format!("{SAY}priority = \"urgent\""),
        "g.toml:4:12: `priority` cannot be \"urgent\"; there is `low`, `normal` and `high`",
    );
    says(
        &format!("{SAY}cpu = \"all\""),
        "g.toml:4:7: `cpu` wants the number of a core or a list of them, such as [0, 1], but got the text \"all\"",
    );
    let far = bad(&format!("{SAY}cpu = [100000]"));
    let wanted = "g.toml:4:8: node `say` wants core 100000, but this program may use core";
    assert!(far.contains(wanted) && far.contains("`--set nodes.say.cpu=...`"), "{far}");
    let plan = good(&format!("{SAY}priority = \"low\"\n{print}"));
    assert_eq!(plan.nodes[0].placement, Placement { cores: Vec::new(), priority: Priority::Low });
}
