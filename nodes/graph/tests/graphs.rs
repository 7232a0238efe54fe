//! What a graph file comes to: nodes, edges, types, sub-graphs, variables, `--set`, code, pictures.

mod kinds;

use kinds::{good, lines, options, registry};
use oxiline_graph::plan::{Cap, Class, ClockKind, Full, Plan};
use oxiline_graph::{GraphBuilder, LoadOptions, PortType, Span, plan_file, plan_text, schema, show};
use serde_json::json;

const TRANSCRIBE: &str = r#"schema = 1
name = "transcribe"
[vars]
input = "sample.wav"
output = "-"
model = "base"
words = false
[graph]
clock = "virtual"
drain = "5s"
[models.asr]
use = "whisper"
weights = "${model}"
class = "batch"
batch = { max = 4, wait = "1ms" }
[models.silero]
use = "silero-vad"
[nodes.file]
use = "media.read"
uri = "${input}"
[nodes.decode]
use = "audio.decode"
in = "file.audio"
on_item_error = "skip"
[nodes.pcm]
use = "audio.resample"
in = "decode"
rate = 16000
channels = 1
[nodes.vad]
use = "audio.vad"
in = "pcm"
model = "silero"
min_silence = "300ms"
max_segment = "28s"
[nodes.asr]
use = "asr.transcribe"
model = "asr"
in = { audio = { from = "vad.speech", cap = "60s", full = "block" } }
words = "${words}"
restart = { max = 2, within = "10s" }
[nodes.captions]
use = "caption.write"
in = "asr.transcript"
to = "${output}"
bypass = "mute"
stall = false
"#;

fn transcribe(sets: &[(&str, &str)]) -> Plan {
    let sets = sets.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect();
    let options = LoadOptions { sets, ..options(&[]) };
    plan_text("graphs/transcribe.toml", TRANSCRIBE, &registry(), &options)
        .unwrap_or_else(|m| panic!("must load:\n{}", lines(&m)))
}

fn node(plan: &Plan, name: &str) -> usize {
    plan.nodes.iter().position(|n| &*n.name == name).unwrap_or_else(|| panic!("no node {name}"))
}

#[test]
fn a_file_becomes_a_plan() {
    let plan = transcribe(&[]);
    let names: Vec<&str> = plan.nodes.iter().map(|n| &*n.name).collect();
    assert_eq!(names, ["file", "decode", "pcm", "vad", "asr", "captions"]);
    assert_eq!((plan.clock, plan.drain.as_secs()), (ClockKind::Virtual, 5));
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
    assert_eq!(plan.edges.len(), 5);
    let edge = plan.edges.iter().find(|e| e.to.0 == node(&plan, "asr")).unwrap();
    assert_eq!((edge.from, edge.full), ((node(&plan, "vad"), 0), Full::Block));
    assert_eq!(edge.cap, Cap { items: None, time: Some(Span::secs(60)), bytes: None });
    assert_eq!(edge.ty, PortType::audio(16_000, 1));
    let first = plan.edges.iter().find(|e| e.to.0 == node(&plan, "decode")).unwrap();
    assert_eq!(first.cap, Cap { items: Some(8), time: Some(Span::ms(500)), bytes: None });
    let asr = &plan.nodes[node(&plan, "asr")];
    assert_eq!(asr.restart.unwrap().max, 2);
    assert_eq!(asr.stall.unwrap().as_secs(), 10);
    assert_eq!(plan.nodes[node(&plan, "captions")].stall, None);
    assert_eq!(plan.nodes[node(&plan, "decode")].skip_item_errors, Some(true));
    let model = &plan.models[asr.model.unwrap()];
    assert_eq!((model.identity.as_str(), model.class, model.batch_max), ("whisper:base", Class::Batch, 4));
    assert_eq!(model.options, json!({ "weights": "base" }));
}

#[test]
fn set_overrides_variables_and_keys() {
    let plan = transcribe(&[
        ("model", "\"large\""),
        ("words", "true"),
        ("output", "12"),
        ("nodes.vad.threshold", "0.25"),
        ("nodes.asr.language", "7"),
        ("nodes.captions.stall", "1s"),
        ("models.asr.class", "live"),
        ("graph.drain", "1s"),
    ]);
    assert_eq!(plan.models[0].identity, "whisper:large");
    assert_eq!((plan.models[0].class, plan.drain.as_secs()), (Class::Live, 1));
    let captions = &plan.nodes[node(&plan, "captions")];
    assert_eq!(captions.declared.writes, [std::path::PathBuf::from("12")]);
    assert_eq!(captions.stall.unwrap().as_secs(), 1);
}

#[test]
fn given_values_are_taken_as_they_are() {
    let plan = transcribe(&[("output", "a${b}.srt"), ("nodes.file.uri", "\"${c}\"")]);
    assert_eq!(plan.nodes[node(&plan, "captions")].declared.writes, [std::path::PathBuf::from("a${b}.srt")]);
}

#[test]
fn sound_is_converted_where_it_must_be() {
    // The tone can do 16 kHz mono: nothing is put in between.
    let asr = "[models.w]\nuse = \"whisper\"\nweights = \"x\"\n[nodes.t]\nuse = \"audio.tone\"\n";
    let plan = good(&format!(
        "{asr}[nodes.a]\nuse = \"asr.transcribe\"\nmodel = \"w\"\nin = \"t\"\n[nodes.c]\nuse = \"caption.write\"\nin = \"a\""
    ));
    assert_eq!(plan.nodes.len(), 3);
    assert_eq!(plan.nodes[node(&plan, "t")].output_types[0], PortType::audio(16_000, 1));
    // Alone it gives its native form.
    let plan = good(&format!("{asr}[nodes.k]\nuse = \"tap\"\nin = \"t\""));
    assert_eq!(plan.nodes[node(&plan, "t")].output_types[0], PortType::audio(48_000, 2));
    // The wish goes back through a node that follows its input, to the producer.
    let through = "[nodes.g]\nuse = \"audio.gain\"\nin = \"t\"\n[nodes.a]\nuse = \"asr.transcribe\"\nmodel = \"w\"\nin = \"g\"\n[nodes.c]\nuse = \"caption.write\"\nin = \"a\"";
    let plan = good(&format!("{asr}{through}"));
    assert_eq!((plan.nodes.len(), plan.notes.len()), (4, 0), "{:?}", plan.notes);
    // A producer whose form is known only later gets a converter, as late as possible.
    let decode = "[models.w]\nuse = \"whisper\"\nweights = \"x\"\n[nodes.f]\nuse = \"media.read\"\nuri = \"x\"\n[nodes.t]\nuse = \"audio.decode\"\nin = \"f\"\n";
    let plan = good(&format!("{decode}{through}"));
    let put = plan.nodes.iter().position(|n| n.inserted).unwrap();
    assert_eq!(&*plan.nodes[put].name, "a-audio~resample");
    assert!(plan.edges.iter().any(|e| e.from.0 == node(&plan, "g") && e.to == (put, 0)));
    assert!(
        plan.edges
            .iter()
            .any(|e| e.from == (put, 0) && e.to.0 == node(&plan, "a") && e.ty == PortType::audio(16_000, 1))
    );
    assert_eq!(plan.notes.len(), 1);
}

#[test]
fn several_producers_and_several_edges() {
    let plan = good(
        "[nodes.a]\nuse = \"text.say\"\n[nodes.b]\nuse = \"text.say\"\n[nodes.p]\nuse = \"text.print\"\nin = [\"a\", { from = \"b\", cap = 3, full = \"drop-oldest\" }]",
    );
    assert_eq!(plan.edges.len(), 2);
    assert!(plan.edges.iter().all(|e| e.to == (2, 0)));
    assert_eq!((plan.edges[1].cap.items, plan.edges[1].full), (Some(3), Full::DropOldest));
}

const PART: &str = r#"schema = 1
[vars]
language = "auto"
[models.w]
use = "whisper"
weights = "tiny"
[nodes.decode]
use = "audio.decode"
in = "port.media"
[nodes.asr]
use = "asr.transcribe"
model = "w"
in = { audio = { from = "decode", cap = "3s" } }
language = "${language}"
[ports]
in = { media = "packet" }
out = { transcript = "asr.transcript" }
"#;

#[test]
fn sub_graphs_are_put_in_place() {
    let text = r#"schema = 1
import = ["../models.toml"]
[nodes.file]
use = "media.read"
uri = "x"
[nodes.listen]
use = "graph:parts/part.toml"
in = { media = { from = "file", cap = 5 } }
language = "de"
model = "ears"
scope = "reply"
[nodes.second]
use = "graph:parts/part.toml"
in = "file.audio"
[nodes.c]
use = "caption.write"
in = ["listen.transcript", "second"]
[nodes.k]
use = "control.keys"
cancels = ["reply"]
"#;
    let files = [
        ("d/parts/part.toml", PART),
        (
            "models.toml",
            "[models.ears]\nuse = \"whisper\"\nweights = \"large\"\n[models.spare]\nuse = \"whisper\"\nweights = \"spare\"",
        ),
    ];
    let with = |text: &str, sets: &[(&str, &str)]| {
        let sets = sets.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect();
        plan_text("d/g.toml", text, &registry(), &LoadOptions { sets, ..options(&files) })
    };
    // A member of the scope that cannot be cancelled is told; decode cannot.
    let refused = lines(&with(text, &[]).err().unwrap());
    assert!(refused.contains("node `listen/decode` cannot belong to a scope"), "{refused}");
    let text = text
        .replace("scope = \"reply\"\n", "")
        .replace("[nodes.k]\nuse = \"control.keys\"\ncancels = [\"reply\"]\n", "");
    let plan = with(&text, &[("nodes.listen/asr.words", "true")]).unwrap_or_else(|m| panic!("{}", lines(&m)));
    let names: Vec<&str> = plan.nodes.iter().map(|n| &*n.name).filter(|n| !n.contains('~')).collect();
    assert_eq!(names, ["file", "listen/decode", "listen/asr", "second/decode", "second/asr", "c"]);
    let edge = plan.edges.iter().find(|e| e.to.0 == node(&plan, "listen/decode")).unwrap();
    assert_eq!(
        (edge.from.0, edge.cap.items),
        (node(&plan, "file"), Some(5)),
        "the outer capacity counts where the part says none"
    );
    let identities: Vec<&str> = plan.models.iter().map(|m| m.identity.as_str()).collect();
    assert_eq!(identities, ["whisper:large", "whisper:tiny"]);
    assert_eq!(plan.edges.iter().filter(|e| e.to.0 == node(&plan, "c")).count(), 2);
    // Alone, a part checks: something stands for what is not there.
    let alone = plan_text("part.toml", PART, &registry(), &options(&[])).unwrap_or_else(|m| panic!("{}", lines(&m)));
    assert!(alone.nodes.iter().any(|n| &*n.kind == "port" && n.inserted));
}

#[test]
fn files_find_their_parts() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("parts")).unwrap();
    std::fs::write(dir.path().join("parts/part.toml"), PART).unwrap();
    let main = dir.path().join("main.toml");
    std::fs::write(&main, "schema = 1\n[nodes.f]\nuse = \"media.read\"\nuri = \"x\"\n[nodes.s]\nuse = \"graph:parts/part.toml\"\nin = \"f\"\n[nodes.c]\nuse = \"caption.write\"\nin = \"s\"").unwrap();
    let plan = plan_file(&main, &registry(), &options(&[])).unwrap_or_else(|m| panic!("{}", lines(&m)));
    assert_eq!((&*plan.name, plan.models.len()), ("main", 1));
}

#[test]
fn code_builds_the_same_graph() {
    let built = GraphBuilder::new("transcribe")
        .set("clock", json!("virtual"))
        .set("drain", json!("5s"))
        .var("model", json!("base"))
        .model(
            "asr",
            "whisper",
            json!({ "weights": "${model}", "class": "batch", "batch": { "max": 4, "wait": "1ms" } }),
        )
        .model("silero", "silero-vad", json!({}))
        .node("file", "media.read", json!({ "uri": "sample.wav" }))
        .node("decode", "audio.decode", json!({ "on_item_error": "skip" }))
        .node("pcm", "audio.resample", json!({ "rate": 16000, "channels": 1 }))
        .node("vad", "audio.vad", json!({ "model": "silero", "min_silence": "300ms", "max_segment": "28s" }))
        .node(
            "asr",
            "asr.transcribe",
            json!({ "model": "asr", "words": false, "restart": { "max": 2, "within": "10s" } }),
        )
        .node("captions", "caption.write", json!({ "to": "-", "bypass": "mute", "stall": false }))
        .connect("file.audio", "decode")
        .connect("decode", "pcm")
        .connect("pcm", "vad")
        .connect_with("vad.speech", "asr.audio", json!({ "cap": "60s", "full": "block" }))
        .connect("asr.transcript", "captions")
        .plan(&registry())
        .unwrap_or_else(|m| panic!("{}", lines(&m)));
    assert_eq!(show::show(&built), show::show(&transcribe(&[])));
    let said = |g: GraphBuilder| lines(&g.plan(&registry()).err().expect("must not load"));
    assert_eq!(
        said(GraphBuilder::new("x").node("a", "text.sya", json!({}))),
        "there is no node kind `text.sya`; did you mean `text.say`?\n"
    );
    let twice = GraphBuilder::new("x").node("a", "text.say", json!({})).node("a", "text.say", json!({}));
    assert_eq!(said(twice), "`nodes.a` is declared twice; rename or remove one of them\n");
    assert_eq!(
        said(GraphBuilder::new("x").connect("a", "b")),
        "`connect` names the node `b`, which was not added yet\n"
    );
}

#[test]
fn latency_and_memory_add_up() {
    let plan = transcribe(&[("nodes.asr.late", "2s")]);
    let paths = show::latencies(&plan);
    assert_eq!(paths.len(), 1);
    assert_eq!((paths[0].sink.as_str(), paths[0].min, paths[0].max), ("captions", Span::ms(32), Span::ms(2812)));
    assert_eq!(paths[0].parts.len(), 3);
    // Two queues of packets and unknown sound, two of 16 kHz mono, one of transcripts; six nodes of 1 MiB.
    let sound = 48_000 * 2 * 4 / 2;
    let edges = 8 * (64 << 10) + sound + 16_000 * 4 / 2 + 60 * 16_000 * 4 + 256 * (64 << 10);
    assert_eq!(plan.worst_case_bytes, Some(edges + (6 << 20)));
}

#[test]
fn pictures_show_every_node_and_edge() {
    let plan = transcribe(&[]);
    let text = show::show(&plan);
    assert!(
        text.contains("vad.speech → asr.audio                audio 16000 Hz mono  60s               block  ≤ 3.7 MiB"),
        "{text}"
    );
    assert!(text.contains("memory of queues and nodes: at most"), "{text}");
    let dot = show::dot(&plan);
    let mermaid = show::mermaid(&plan);
    for n in &plan.nodes {
        assert!(dot.contains(&format!("\"{}\" [label", n.name)) && mermaid.contains(&format!("\"{}<br/>", n.name)));
    }
    assert_eq!(dot.matches("·").count(), mermaid.matches("·").count());
    assert_eq!(mermaid.matches("-->|").count(), 5);
}

#[test]
fn the_schema_knows_every_kind_and_option() {
    let schema = schema::schema(&registry());
    let branches = schema["$defs"]["node"]["allOf"].as_array().unwrap();
    let vad = branches.iter().find(|b| b["if"]["properties"]["use"]["const"] == "audio.vad").unwrap();
    let properties = vad["then"]["properties"].as_object().unwrap();
    for key in ["threshold", "min_silence", "gate", "max_segment", "in", "model", "restart", "use"] {
        assert!(properties.contains_key(key), "{key}");
    }
    assert_eq!(vad["then"]["additionalProperties"], json!(false));
    // Every reference leads somewhere.
    fn refs(value: &serde_json::Value, out: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                out.extend(map.get("$ref").and_then(|r| r.as_str()).map(String::from));
                map.values().for_each(|v| refs(v, out));
            }
            serde_json::Value::Array(items) => items.iter().for_each(|v| refs(v, out)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    refs(&schema, &mut all);
    assert!(!all.is_empty());
    for r in all {
        assert!(schema.pointer(r.strip_prefix('#').unwrap()).is_some(), "{r} leads nowhere");
    }
}

#[test]
fn the_page_of_kinds_tells_ports_and_options() {
    let page = schema::nodes_markdown(&registry());
    assert!(page.contains("### `audio.vad`\n\nFinds speech.\n\nIn: `audio` (audio 16000 Hz mono).\n\nOut: `speech` (audio 16000 Hz mono), `events` (event).\n\nNeeds a model that speaks `judge`."), "{page}");
    assert!(page.contains("| `threshold` | number | `0.5` | Probability from which it is speech. |"), "{page}");
    assert!(page.contains("| `temperatures` | list of number | `[0.2]` |"), "{page}");
    assert!(page.contains("| `uri` | string | required | The file to read. |"), "{page}");
    assert!(page.contains("| `min_silence` | duration | `\"500ms\"` | Shortest silence. |"), "{page}");
}
