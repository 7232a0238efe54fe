use oxiline_graph::protocol::llm::Grammar;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Constraint, Vocabulary, check, json_schema, regex};
use crate::llm::tests::{END, VOCAB, tokenizer};
use crate::sample::Rng;

/// An answer by chance, tokens drawn evenly from what may come; None when it gets too long.
fn random(grammar: &Grammar, vocabulary: &Vocabulary, seed: u64) -> Option<String> {
    let mut constraint = Constraint::new(grammar, vocabulary).unwrap();
    let mut rng = Rng::new(seed);
    let mut bytes = Vec::new();
    for _ in 0..3000 {
        let mut logits = vec![0.0; VOCAB];
        constraint.mask(&mut logits).unwrap();
        let allowed: Vec<u32> = (0..VOCAB as u32).filter(|id| logits[*id as usize] == 0.0).collect();
        assert!(!allowed.is_empty(), "nothing may come after {:?}", String::from_utf8_lossy(&bytes));
        // Quotes and brackets come more often than by chance, or texts would never end.
        let closing: Vec<u32> =
            allowed.iter().copied().filter(|id| b"\"]}".contains(&(*id as u8)) && *id < 256).collect();
        let from = if !closing.is_empty() && rng.uniform() < 0.3 { closing } else { allowed };
        let id = from[(rng.uniform() * from.len() as f64) as usize % from.len()];
        let over = constraint.accept(id).unwrap();
        if id == END {
            return Some(String::from_utf8(bytes).expect("whole characters"));
        }
        bytes.push(id as u8);
        if over {
            return Some(String::from_utf8(bytes).expect("whole characters"));
        }
    }
    None
}

fn vocabulary() -> Vocabulary {
    Vocabulary::new(&tokenizer(), VOCAB).unwrap()
}

/// Answers to many seeds, all of which `valid` takes.
fn all_valid(schema: &Value, valid: impl Fn(&Value) -> bool) {
    let (vocabulary, grammar) = (vocabulary(), Grammar::JsonSchema(schema.clone()));
    let mut ended = 0;
    for seed in 0..40 {
        let Some(text) = random(&grammar, &vocabulary, seed) else { continue };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema}: `{text}` is no JSON: {e}"));
        assert!(valid(&value), "{schema} does not allow {text}");
        ended += 1;
    }
    assert!(ended >= 20, "only {ended} of 40 answers to {schema} ended");
}

#[test]
fn answers_are_what_the_schema_says() {
    let object = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 8}, "age": {"type": "integer", "minimum": 3, "maximum": 120},
                       "kind": {"enum": ["a", "b", 7, null]}},
        "required": ["name", "age", "kind"], "additionalProperties": false,
    });
    all_valid(&object, |v| {
        let name = v["name"].as_str().unwrap().chars().count();
        let age = v["age"].as_i64().unwrap();
        v.as_object().unwrap().len() == 3
            && (1..=8).contains(&name)
            && (3..=120).contains(&age)
            && [json!("a"), json!("b"), json!(7), json!(null)].contains(&v["kind"])
    });
    let list = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4});
    all_valid(&list, |v| {
        let items = v.as_array().unwrap();
        (2..=4).contains(&items.len()) && items.iter().all(Value::is_boolean)
    });
    all_valid(&json!({"const": {"x": [1, 2]}}), |v| *v == json!({"x": [1, 2]}));
    all_valid(&json!({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[0-9]{2}-[a-f]+$"}]}), |v| {
        v.as_str().is_none_or(|s| {
            s.len() > 3 && s.as_bytes()[2] == b'-' && s[3..].bytes().all(|b| (b'a'..=b'f').contains(&b))
        })
    });
    let pair = json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 2});
    all_valid(&pair, |v| v[0].is_i64() && v[1].is_string() && v.as_array().unwrap().len() == 2);
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                           "required": ["next"], "additionalProperties": false}},
    });
    fn chain(v: &Value) -> bool {
        v.is_null() || v.as_object().is_some_and(|o| o.len() == 1 && chain(&o["next"]))
    }
    all_valid(&tree, |v| v.is_object() && chain(v));
}

/// Schemas without texts of any length.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        (-50_i64..50, 0_i64..50).prop_map(|(a, n)| json!({"type": "integer", "minimum": a, "maximum": a + n})),
        prop::collection::vec("[a-zé\"\\\\]{0,4}", 1..4).prop_map(|all| json!({"enum": all})),
        (0_usize..3, 0_usize..4).prop_map(|(a, n)| json!({"type": "string", "minLength": a, "maxLength": a + n})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), 0_usize..3, 0_usize..3)
                .prop_map(|(items, a, n)| json!({"type": "array", "items": items, "minItems": a, "maxItems": a + n})),
            prop::collection::btree_map("[a-d]", inner.clone(), 0..4).prop_map(|fields| {
                let required: Vec<&String> = fields.keys().collect();
                json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false})
            }),
            prop::collection::vec(inner, 1..3).prop_map(|all| json!({"anyOf": all})),
        ]
    })
}

/// Does a value belong to one of the schemas above?
fn allowed(schema: &Value, v: &Value) -> bool {
    let within =
        |n: i64, low: &str, high: &str| n >= schema[low].as_i64().unwrap() && n <= schema[high].as_i64().unwrap();
    if let Some(all) = schema["anyOf"].as_array() {
        return all.iter().any(|schema| allowed(schema, v));
    }
    if let Some(all) = schema["enum"].as_array() {
        return all.contains(v);
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => v.is_boolean(),
        "null" => v.is_null(),
        "integer" => v.as_i64().is_some_and(|n| within(n, "minimum", "maximum")),
        "string" => v.as_str().is_some_and(|s| within(s.chars().count() as i64, "minLength", "maxLength")),
        "array" => v.as_array().is_some_and(|items| {
            within(items.len() as i64, "minItems", "maxItems") && items.iter().all(|v| allowed(&schema["items"], v))
        }),
        "object" => {
            let fields = schema["properties"].as_object().unwrap();
            v.as_object().is_some_and(|o| {
                o.len() == fields.len()
                    && fields.iter().all(|(name, schema)| o.get(name).is_some_and(|v| allowed(schema, v)))
            })
        }
        other => panic!("{other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_schema_is_kept_to(schema in schemas(), seed in any::<u64>()) {
        let grammar = Grammar::JsonSchema(schema.clone());
        if let Some(text) = random(&grammar, &vocabulary(), seed) {
            let value: Value = serde_json::from_str(&text).map_err(|e| TestCaseError::fail(format!("`{text}`: {e}")))?;
            prop_assert!(allowed(&schema, &value), "{} does not allow {}", schema, text);
        }
    }
}

#[test]
fn answers_match_the_expression() {
    let vocabulary = vocabulary();
    for (pattern, valid) in [
        ("[0-9]{3}-(ab|c)+", (|s| s.len() >= 5 && s.as_bytes()[3] == b'-') as fn(&str) -> bool),
        ("yes|no", |s| s == "yes" || s == "no"),
        ("[äöü€]{2,5}", |s| (2..=5).contains(&s.chars().count()) && s.chars().all(|c| "äöü€".contains(c))),
        ("", |s| s.is_empty()),
    ] {
        let grammar = Grammar::Regex(pattern.into());
        for seed in 0..30 {
            let text = random(&grammar, &vocabulary, seed).unwrap_or_else(|| "000-ab".into());
            assert!(valid(&text) || pattern.starts_with("[0-9]") && text == "000-ab", "{pattern}: `{text}`");
        }
    }
}

#[test]
fn what_cannot_be_used_is_one_sentence() {
    for schema in [
        json!({"type": "strng"}),
        json!({"type": 7}),
        json!({"$ref": "#/nowhere"}),
        json!({"properties": 3}),
        json!({"type": "array", "uniqueItems": true}),
        json!(false),
        json!({"enum": []}),
    ] {
        let error = check(&Grammar::JsonSchema(schema.clone())).expect_err(&schema.to_string()).to_string();
        assert!(error.starts_with("the JSON schema cannot be used: ") && !error.contains('\n'), "{schema}: {error}");
    }
    for pattern in ["(", "[z-a]", "a{2,1}", "(?=x)y"] {
        let error = regex(pattern).expect_err(pattern).to_string();
        assert!(error.starts_with("the regular expression cannot be used: ") && !error.contains('\n'), "{error}");
    }
    let error = json_schema("{\"type\": ").unwrap_err().to_string();
    assert!(error.contains("is not JSON"), "{error}");
    let error = json_schema("no/such.json").unwrap_err().to_string();
    assert!(error.contains("`no/such.json` cannot be read"), "{error}");
}
