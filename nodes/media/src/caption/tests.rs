use super::*;

fn said(start: f64, end: f64, text: &str) -> Caption {
    Caption { start, end, text: text.into(), language: Some("en".into()), ..Caption::default() }
}

fn written(format: Format, max_line: Option<usize>, captions: &[Caption]) -> String {
    let mut writer = CaptionWriter::new(Vec::new(), format, max_line);
    for caption in captions {
        writer.push(caption).unwrap();
    }
    writer.finish(Some(4000.5)).unwrap();
    String::from_utf8(writer.into_inner()).unwrap()
}

#[test]
fn every_format_as_its_readers_expect_it() {
    let captions = [said(0.0, 1.5, " Hello <world> & all"), said(3661.25, 3662.0, " two\n lines\t here")];
    assert_eq!(written(Format::Text, None, &captions), "Hello <world> & all\ntwo lines here\n");
    assert_eq!(
        written(Format::Srt, None, &captions),
        "1\n00:00:00,000 --> 00:00:01,500\nHello <world> & all\n\n\
         2\n01:01:01,250 --> 01:01:02,000\ntwo lines here\n\n"
    );
    assert_eq!(
        written(Format::Vtt, None, &captions),
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello &lt;world&gt; &amp; all\n\n\
         01:01:01.250 --> 01:01:02.000\ntwo lines here\n\n"
    );
    assert_eq!(
        written(Format::Tsv, None, &captions),
        "start\tend\ttext\n0\t1500\tHello <world> & all\n3661250\t3662000\ttwo lines here\n"
    );
    assert_eq!(written(Format::Lrc, None, &captions), "[00:00.00]Hello <world> & all\n[61:01.25]two lines here\n");
}

#[test]
fn json_is_valid_and_carries_what_is_known() {
    let mut caption = said(0.1 + 0.2, 1.0, " \"quoted\" \u{1}");
    caption.tokens = vec![50364, 7];
    caption.avg_logprob = Some(f32::NEG_INFINITY);
    caption.words = vec![Word { text: " quoted".into(), start: 0.3, end: 0.7, probability: 0.5 }];
    let text = written(Format::Json, None, &[caption, said(1.0, 2.0, " b")]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["language"], "en");
    assert_eq!(json["duration"], 4000.5);
    assert_eq!(json["text"], " \"quoted\" \u{1} b");
    assert_eq!(json["segments"][0]["start"], 0.3);
    assert_eq!(json["segments"][0]["words"][0]["word"], " quoted");
    assert_eq!(json["segments"][0]["tokens"][0], 50364);
    assert!(json["segments"][0]["avg_logprob"].is_null());
    assert_eq!(json["segments"][1]["id"], 1);
    assert!(json["segments"][1].get("words").is_none());
    let empty: Value = serde_json::from_str(&written(Format::Json, None, &[])).unwrap();
    assert_eq!(empty["segments"].as_array().unwrap().len(), 0);
    assert!(empty["language"].is_null());
}

#[test]
fn segments_without_text_are_no_cues_but_json_keeps_their_tokens() {
    let mut silent = said(0.0, 30.0, " ");
    silent.tokens = vec![50364, 51864];
    let captions = [silent, said(30.0, 31.0, " a")];
    for format in [Format::Text, Format::Srt, Format::Vtt, Format::Tsv, Format::Lrc] {
        let text = written(format, None, &captions);
        assert_eq!(text, written(format, None, &captions[1..]), "{format:?}");
    }
    let json: Value = serde_json::from_str(&written(Format::Json, None, &captions)).unwrap();
    assert_eq!(json["segments"][0]["tokens"], json!([50364, 51864]));
    assert_eq!(json["segments"][1]["text"], " a");
}

#[test]
fn times_never_run_backwards_nor_past_the_end() {
    let mut writer = CaptionWriter::new(Vec::new(), Format::Srt, None);
    writer.limit(5.0);
    for caption in [said(2.0, 1.0, "a"), said(1.0, 3.0, "b"), said(4.0, 9.0, "c"), said(f64::NAN, 8.0, "d")] {
        writer.push(&caption).unwrap();
    }
    let text = String::from_utf8(writer.into_inner()).unwrap();
    let times: Vec<&str> = text.lines().filter(|l| l.contains("-->")).collect();
    assert_eq!(
        times,
        [
            "00:00:02,000 --> 00:00:02,000",
            "00:00:02,000 --> 00:00:03,000",
            "00:00:04,000 --> 00:00:05,000",
            "00:00:04,000 --> 00:00:05,000"
        ]
    );
}

#[test]
fn text_cannot_break_out_of_its_cue() {
    let evil = said(0.0, 1.0, "a\n\n2\n00:00:05.000 --> 00:00:06.000\nb");
    let srt = written(Format::Srt, None, std::slice::from_ref(&evil));
    assert_eq!(srt.lines().filter(|l| l.contains("-->")).count(), 1);
    assert_eq!(srt.matches("\n\n").count(), 1);
    let vtt = written(Format::Vtt, Some(10), &[evil]);
    assert_eq!(vtt.lines().filter(|l| l.contains("-->")).count(), 1);
}

#[test]
fn captions_without_text_are_left_out_and_numbers_stay_whole() {
    let srt = written(Format::Srt, None, &[said(0.0, 1.0, "a"), said(1.0, 2.0, "  "), said(2.0, 3.0, "b")]);
    assert!(srt.contains("2\n00:00:02,000"), "{srt}");
}

#[test]
fn long_lines_wrap_where_people_read_them() {
    let long = said(0.0, 10.0, "the quick brown fox jumps over the lazy dog");
    assert!(
        written(Format::Srt, Some(20), std::slice::from_ref(&long))
            .contains("the quick brown fox\njumps over the lazy\ndog\n")
    );
    assert_eq!(
        written(Format::Lrc, Some(20), std::slice::from_ref(&long)),
        "[00:00.00]the quick brown fox\n[00:04.63]jumps over the lazy\n[00:09.27]dog\n"
    );
    assert_eq!(written(Format::Text, Some(20), &[long]), "the quick brown fox jumps over the lazy dog\n");
}
