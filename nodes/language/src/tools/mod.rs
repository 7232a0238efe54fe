//! Tools every build has: the date and time, and exact arithmetic.

mod calculate;

use jiff::ZonedDateTime;
use jiff::tz::TimeZone;
use oxiline_graph::protocol::llm::ToolCall;
use oxiline_graph::{Error, Result};
use serde_json::{Value, json};

pub use calculate::calculate;

/// The tools as chat templates take them.
pub fn builtin() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {
            "name": "get_current_datetime",
            "description": "The current date, time, weekday and time zone.",
            "parameters": {"type": "object", "properties": {
                "timezone": {"type": "string", "description": "IANA name like Europe/Berlin; the user's own when left out."},
            }, "required": []},
        }}),
        json!({"type": "function", "function": {
            "name": "calculate",
            "description": "Computes an arithmetic expression exactly.",
            "parameters": {"type": "object", "properties": {
                "expression": {"type": "string", "description": "Numbers, + - * / % ^ ! ( ), abs, floor, ceil, round, sqrt, min, max."},
            }, "required": ["expression"]},
        }}),
    ]
}

/// Runs a built-in tool.
///
/// # Errors
/// A sentence for the model: an unknown tool, or arguments it does not take.
pub fn call(call: &ToolCall) -> Result<String> {
    let argument = |name: &str| call.arguments.get(name).filter(|v| !v.is_null());
    match call.name.as_str() {
        "get_current_datetime" => datetime(argument("timezone")),
        "calculate" => match argument("expression") {
            Some(Value::String(text)) => calculate(text),
            Some(Value::Number(n)) => calculate(&n.to_string()),
            _ => Err(Error::msg("`calculate` needs `expression`, a string")),
        },
        name => {
            Err(Error::msg(format_args!("there is no tool `{name}`; there are get_current_datetime and calculate")))
        }
    }
}

fn datetime(zone: Option<&Value>) -> Result<String> {
    let now = match zone {
        None => ZonedDateTime::now(),
        Some(Value::String(name)) => {
            let zone = TimeZone::get(name).map_err(|_| {
                Error::msg(format_args!("`{name}` is no known time zone; give an IANA name like Europe/Berlin"))
            })?;
            ZonedDateTime::now().with_time_zone(zone)
        }
        Some(_) => return Err(Error::msg("`timezone` must be a string like Europe/Berlin")),
    };
    Ok(json!({
        "datetime": now.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        "weekday": now.strftime("%A").to_string(),
        "timezone": zone_name(&now),
    })
    .to_string())
}

fn zone_name(now: &ZonedDateTime) -> String {
    now.time_zone().iana_name().map_or_else(|| now.offset().to_string(), String::from)
}

/// The system message of a conversation that has no other: who answers, and when.
pub fn default_system() -> String {
    let now = ZonedDateTime::now();
    format!(
        "You are a helpful assistant. It is {}, {} ({}).",
        now.strftime("%A, %-d %B %Y"),
        now.strftime("%H:%M"),
        zone_name(&now)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, arguments: Value) -> Result<String> {
        call(&ToolCall { name: name.into(), arguments })
    }

    #[test]
    fn tools_answer_or_say_what_is_wrong() {
        assert_eq!(run("calculate", json!({"expression": "1234.5*6789-2^20"})).unwrap(), "7332444.5");
        let now: Value = serde_json::from_str(&run("get_current_datetime", json!({})).unwrap()).unwrap();
        assert!(now["datetime"].as_str().unwrap().starts_with("20"), "{now}");
        let utc = run("get_current_datetime", json!({"timezone": "UTC"})).unwrap();
        assert!(utc.contains("+00:00"), "{utc}");
        for (name, arguments) in [
            ("calculate", json!({})),
            ("calculate", json!({"expression": "2+"})),
            ("get_current_datetime", json!({"timezone": "Mars/Base"})),
            ("get_current_datetime", json!({"timezone": 3})),
            ("rm", json!({})),
        ] {
            assert!(!run(name, arguments).unwrap_err().to_string().is_empty());
        }
        let names: Vec<Value> = builtin().iter().map(|t| t["function"]["name"].clone()).collect();
        assert_eq!(names, ["get_current_datetime", "calculate"]);
        assert!(default_system().starts_with("You are a helpful assistant. It is "));
    }
}
