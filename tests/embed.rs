//! `oxiline embed`, `rerank`, `index` and `search` as a person calls them.

mod common;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use common::{oxiline, root, run, sentence, stdout};
use oxiline::{EmbedOptions, Embedder, Reranker, cosine};

/// A tiny seeded checkpoint.
fn model(name: &str) -> String {
    let folder: PathBuf = root().join("nodes/language/tests/fixtures/embed").join(name);
    assert!(folder.is_dir(), "{}", folder.display());
    folder.to_str().expect("a path").into()
}

fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = oxiline()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("written");
    child.wait_with_output().expect("the program ends")
}

fn arrays(text: &str) -> Vec<Vec<f32>> {
    text.lines().map(|line| serde_json::from_str(line).expect("an array")).collect()
}

#[test]
fn lines_become_vectors_in_their_order_and_alone_the_same() {
    let model = model("bert_mean");
    let text: String = (0..700).map(|i| format!("{}\n", "word ".repeat(1 + i % 37))).collect();
    let all = arrays(&stdout(&with_input(&["embed", "--model", &model, "--json"], text.as_bytes())));
    assert_eq!(all.len(), 700);
    let lines: Vec<&str> = text.lines().collect();
    let one = arrays(&stdout(&run(["embed", "--model", &model, "--json", "-p", lines[36]])));
    assert_eq!(one[0], all[36]);
    assert_eq!(all[0], all[37]);
    let mut embedder = Embedder::load(&model).expect("a model");
    let vectors = embedder.embed(&[lines[36]], &EmbedOptions::default()).expect("a vector");
    assert!((cosine(&vectors[0].dense, &all[36]) - 1.0).abs() < 1e-6);
    let short = arrays(&stdout(&run(["embed", "--model", &model, "--json", "-p", lines[36], "--dim", "16"])));
    assert_eq!(short[0].len(), 16);
    assert!((short[0].iter().map(|v| v * v).sum::<f32>() - 1.0).abs() < 1e-5, "normalised again");
}

#[test]
fn columns_and_json_lines_give_what_lines_give() {
    let model = model("bert_mean");
    let base = ["embed", "--model", &model, "--json"];
    let lines = stdout(&with_input(&base, b"a kettle\na train\n"));
    let csv = [&base[..], &["--from", "csv", "--field", "t"]].concat();
    assert_eq!(stdout(&with_input(&csv, b"n,t\n1,a kettle\n2,\"a train\"\n")), lines);
    let jsonl = [&base[..], &["--from", "jsonl", "--field", "t"]].concat();
    assert_eq!(stdout(&with_input(&jsonl, b"{\"t\":\"a kettle\"}\n\"a train\"\n")), lines);
    let said = sentence(&with_input(&csv, b"n,u\n1,x\n"));
    assert!(said.contains("no column `t`") && said.contains("n, u"), "{said}");
}

#[test]
fn what_is_no_text_is_counted_and_its_place_kept() {
    let out = with_input(&["embed", "--model", &model("bert_mean"), "--json"], b"one\n\xff\xfe\n\nfour\n");
    let said = sentence(&out);
    assert!(said.contains("1 texts were skipped") && said.contains("line 2") && said.contains("UTF-8"), "{said}");
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[1], "null");
    assert!(lines[0].starts_with('[') && lines[2].starts_with('[') && lines[3].starts_with('['));
}

#[test]
fn long_texts_are_cut_and_counted_or_embedded_in_pieces() {
    let model = model("bert_mean");
    let text = "the mill by the river ".repeat(40);
    let cut = with_input(&["embed", "--model", &model, "--json"], text.as_bytes());
    assert!(String::from_utf8_lossy(&cut.stderr).contains("1 texts were longer"));
    let chunked = with_input(&["embed", "--model", &model, "--json", "--chunk"], text.as_bytes());
    assert_eq!(String::from_utf8_lossy(&chunked.stderr), "");
    let (cut, chunked) = (arrays(&stdout(&cut)), arrays(&stdout(&chunked)));
    assert_ne!(cut, chunked);
    assert!((chunked[0].iter().map(|v| v * v).sum::<f32>() - 1.0).abs() < 1e-5, "of length 1");
}

#[test]
fn similarity_is_a_matrix_of_cosines() {
    let out =
        stdout(&with_input(&["embed", "--model", &model("mpnet"), "--similarity"], b"a kettle\na train\na kettle\n"));
    let rows: Vec<Vec<&str>> = out.lines().map(|l| l.split(' ').collect()).collect();
    assert_eq!(rows.len(), 3);
    assert_eq!((rows[0][0], rows[0][2], rows[1][1]), ("1.0000", "1.0000", "1.0000"));
    assert_eq!(rows[0][1], rows[1][0]);
    assert_ne!(rows[0][1], "1.0000");
}

#[test]
fn tokens_have_weights_and_vectors_where_the_model_gives_them() {
    let m3 = model("bgem3");
    let out = stdout(&run(["embed", "--model", &m3, "--sparse", "--colbert", "-p", "the mill"]));
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["dense"].as_array().expect("dense").len(), 64);
    assert!(value["sparse"].is_object() && value["colbert"][0].as_array().is_some_and(|v| v.len() == 64));
    let said = sentence(&run(["embed", "--model", &model("bert_mean"), "--sparse", "-p", "x"]));
    assert!(said.contains("sparse_linear.pt"), "{said}");
}

#[test]
fn texts_are_scored_against_a_query() {
    let model = model("rerank_bert");
    let input = b"The mill by the river.\nA train.\n";
    let out = stdout(&with_input(&["rerank", "--model", &model, "--query", "mill", "--json"], input));
    let scores: Vec<f32> = out.lines().map(|l| l.parse().expect("a number")).collect();
    assert!(scores.len() == 2 && scores.iter().all(|s| (0.0..=1.0).contains(s)), "{scores:?}");
    let mut reranker = Reranker::load(&model).expect("a model");
    let ranked = reranker.rank("mill", &["The mill by the river.", "A train."]).expect("ranks");
    assert!(ranked[0].1 >= ranked[1].1);
    assert!((ranked[0].1 - scores[ranked[0].0]).abs() < 1e-6);
}

#[test]
fn mistakes_are_told_in_one_sentence() {
    let bert = model("bert_mean");
    let said = sentence(&run(["embed", "--model", &model("rerank_bert"), "-p", "x"]));
    assert!(said.contains("modules.json"), "{said}");
    let said = sentence(&run(["rerank", "--model", &bert, "--query", "x"]));
    assert!(said.contains("not a reranker"), "{said}");
    let said = sentence(&run(["embed", "--model", &bert, "-p", "x", "--prompt-name", "query"]));
    assert!(said.contains("no prompt `query`"), "{said}");
    let said = sentence(&run(["embed", "--model", &bert, "-p", "x", "--dim", "65"]));
    assert!(said.contains("65 dimensions") && said.contains("64"), "{said}");
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json"] {
        let to = folder.path().join(file);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(std::path::Path::new(&bert).join(file), to).expect("copied");
    }
    let place = folder.path().to_str().expect("a path");
    let said = sentence(&run(["embed", "--model", place, "-p", "x"]));
    assert!(said.contains("tokenizer.json"), "{said}");
    std::fs::copy(std::path::Path::new(&model("gemma3")).join("tokenizer.json"), folder.path().join("tokenizer.json"))
        .expect("copied");
    let said = with_input(&["embed", "--model", place, "-p", "x"], b"");
    // Another vocabulary that happens to be smaller fits the table: then ids are only wrong, not impossible.
    assert!(said.status.success() || sentence(&said).contains("belong together"));
    std::fs::remove_file(folder.path().join("1_Pooling/config.json")).expect("removed");
    let said = sentence(&run(["embed", "--model", place, "-p", "x"]));
    assert!(said.contains("1_Pooling") && said.contains("missing"), "{said}");
}

#[test]
fn a_tokenizer_that_makes_its_library_panic_is_one_sentence() {
    let (folder, bert) = (tempfile::tempdir().expect("a folder"), model("bert_mean"));
    for file in ["config.json", "modules.json", "model.safetensors", "1_Pooling/config.json"] {
        let to = folder.path().join(file);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(std::path::Path::new(&bert).join(file), to).expect("copied");
    }
    let mut tokenizer = common::json(&std::path::Path::new(&bert).join("tokenizer.json"));
    tokenizer["post_processor"]["special_tokens"] = serde_json::json!({});
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("written");
    let said = sentence(&run(["embed", "--model", folder.path().to_str().expect("a path"), "-p", "x"]));
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn files_are_indexed_once_and_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path").to_string();
    std::fs::write(at("a.txt"), "The kettle boils over.\n\nA train leaves the station at noon.\n").expect("written");
    std::fs::write(at("b.srt"), "1\n00:01:05,000 --> 00:01:07,000\nWe counted the birds.\n").expect("written");
    let (index, bert) = (at("index"), model("bert_mean"));
    let (a, b) = (at("a.txt"), at("b.srt"));
    let args = ["index", &index, &a, &b, "--model", &bert];
    let first = run(args);
    stdout(&first);
    assert!(String::from_utf8_lossy(&first.stderr).contains("2 files indexed, 0 had not changed"));
    let again = run(args);
    assert!(String::from_utf8_lossy(&again.stderr).contains("0 files indexed, 2 had not changed"));
    let found = stdout(&run(["search", &index, "train station", "--top", "1"]));
    assert_eq!(found, format!("{a}:3: A train leaves the station at noon.\n"));
    let found = stdout(&run(["search", &index, "counted birds", "--top", "1", "--json"]));
    let hit: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!((hit["time"].as_f64(), hit["file"].as_str()), (Some(65.0), Some(b.as_str())));
    let said = sentence(&run(["search", &at("nothing"), "x"]));
    assert!(said.contains("no index"), "{said}");
}
