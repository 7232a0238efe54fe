//! The runtime's keys of nodes, edges, models and scopes.

use std::time::Duration;

use super::draft::{DraftEdge, DraftModel, DraftNode, ModelKeys};
use super::keys;
use super::message::{Reports, Spot, clip};
use super::value::{Key, Kind, Table, Value};
use crate::plan::{Bypass, Group, Placement, Priority};

/// Reads the runtime's keys of a node out of its table; the rest are its options.
pub(crate) fn node(node: &mut DraftNode, table: Table, reports: &mut Reports) {
    for (key, value) in table.entries {
        match key.name.as_str() {
            "restart" => node.restart = keys::restart("restart", &value, reports),
            "bypass" => {
                let words = [("pass", Bypass::Pass), ("mute", Bypass::Mute)];
                node.bypass = keys::word("bypass", &words, &value, reports).map(|b| (b, value.spot));
            }
            "on_item_error" => {
                node.skip_item_errors =
                    keys::word("on_item_error", &[("skip", true), ("fail", false)], &value, reports);
            }
            "stall" => {
                node.stall = match &value.kind {
                    Kind::Bool(false) => None,
                    _ => keys::duration("stall", &value, reports).filter(|d| !d.is_zero()),
                }
            }
            "threads" | "cpu" | "priority" | "class" => node.placement.push((key, value)),
            _ => node.options.entries.push((key, value)),
        }
    }
}

/// Reads `cpu` and `priority` of a node.
pub(crate) fn placement(node: &str, key: &Key, value: &Value, out: &mut Placement, reports: &mut Reports) {
    let Some(usable) = crate::placement::usable() else {
        let text = format!("`{}` of node `{node}` cannot be followed on this system; it changes nothing", key.name);
        return reports.warn(key.spot, text);
    };
    if key.name == "priority" {
        let words = [("low", Priority::Low), ("normal", Priority::Normal), ("high", Priority::High)];
        out.priority = keys::word("priority", &words, value, reports).unwrap_or_default();
        return;
    }
    let cores = match &value.kind {
        Kind::List(items) if !items.is_empty() => items.as_slice(),
        Kind::Int(_) => std::slice::from_ref(value),
        _ => return keys::wrong("cpu", "the number of a core or a list of them, such as [0, 1]", value, reports),
    };
    for core in cores {
        let Some(n) = keys::count("cpu", 0, core, reports) else { continue };
        let n = n as usize;
        if usable.contains(&n) {
            out.cores.push(n);
        } else {
            let text = format!(
                "node `{node}` wants core {n}, but this program may use {}; leave `cpu` out, or `--set nodes.{node}.cpu=...`",
                crate::placement::cores(&usable)
            );
            reports.error(core.spot, text);
        }
    }
}

/// Reads `{ from, cap, full, ... }`; gives `from`.
pub(crate) fn edge(to: &str, table: &Table, spot: Spot, edge: &mut DraftEdge, reports: &mut Reports) -> Option<String> {
    keys::unknown(table, &["from", "cap", "full", "limit", "feedback", "convert", "sync"], to, reports);
    if let Some(v) = table.get("cap") {
        edge.cap = keys::cap(&format!("cap of {to}"), v, reports);
    }
    if let Some(v) = table.get("full") {
        edge.full = keys::full("full", v, reports);
    }
    if let Some(v) = table.get("limit") {
        reports
            .error(v.spot, "`limit` says where `full = \"degrade\"` ends, which comes with live audio; leave it out");
    }
    if let Some(v) = table.get("sync") {
        edge.by_turn = keys::word("sync", &[("turn", v.spot)], v, reports);
    }
    if let Some(v) = table.get("feedback") {
        edge.feedback = keys::flag("feedback", v, reports).unwrap_or(false);
    }
    if let Some(v) = table.get("convert") {
        edge.convert = keys::flag("convert", v, reports);
    }
    match table.get("from") {
        Some(v) => keys::text("from", v, reports),
        None => {
            reports
                .error(spot, format!("the input `{to}` does not say where it comes from; add `from = \"node.port\"`"));
            None
        }
    }
}

/// Reads a `[models.NAME]` table.
pub(crate) fn model(key: &Key, mut table: Table, prefix: &str, reports: &mut Reports) -> Option<DraftModel> {
    let Some((use_key, use_value)) = table.take("use") else {
        reports.error(key.spot, format!("model `{}` does not say what it is; add `use = \"KIND\"`", clip(&key.name)));
        return None;
    };
    let kind = keys::text("use", &use_value, reports)?;
    let mut out = ModelKeys::default();
    let mut options = Table::default();
    for (key, value) in table.entries {
        let whose = format!("{} of a model", key.name);
        let positive = |reports: &mut Reports| keys::count(&whose, 1, &value, reports).map(|n| n as usize);
        match key.name.as_str() {
            "class" => out.class = keys::word("class", &keys::CLASSES, &value, reports).unwrap_or_default(),
            "max_sessions" => out.max_sessions = positive(reports).unwrap_or(out.max_sessions),
            "queue" => out.queue = positive(reports).unwrap_or(out.queue),
            "keep" => out.keep = keys::duration("keep", &value, reports).unwrap_or(out.keep),
            "batch" => match &value.kind {
                Kind::Table(batch) => {
                    keys::unknown(batch, &["max", "wait"], "batch", reports);
                    if let Some(v) = batch.get("max") {
                        out.batch_max = keys::count("batch.max", 1, v, reports).map_or(1, |n| n as usize);
                    }
                    if let Some(v) = batch.get("wait") {
                        out.batch_wait = keys::duration("batch.wait", v, reports).unwrap_or(Duration::ZERO);
                    }
                }
                _ => out.batch_max = positive(reports).unwrap_or(1),
            },
            "share" => match &value.kind {
                Kind::Table(share) => {
                    keys::unknown(share, &["interactive", "live", "batch"], "share", reports);
                    for (i, (name, _)) in keys::CLASSES.iter().enumerate() {
                        if let Some(v) = share.get(name) {
                            out.share[i] = keys::count(&format!("share.{name}"), 1, v, reports).unwrap_or(1);
                        }
                    }
                }
                _ => keys::wrong("share", "a table such as { interactive = 4, live = 2, batch = 1 }", &value, reports),
            },
            _ => options.entries.push((key, value)),
        }
    }
    Some(DraftModel {
        name: format!("{prefix}{}", key.name).into(),
        spot: key.spot,
        kind,
        kind_spot: if use_value.spot == Spot::NONE { use_key.spot } else { use_value.spot },
        options,
        keys: out,
        quiet: false,
        used: false,
    })
}

/// Reads a `[scopes.NAME]` table.
pub(crate) fn scope(key: &Key, table: &Table, reports: &mut Reports) -> Group {
    keys::unknown(table, &["group"], &format!("scopes.{}", key.name), reports);
    let words = [("one", Group::One), ("rest", Group::Rest), ("all", Group::All)];
    table.get("group").and_then(|v| keys::word("group", &words, v, reports)).unwrap_or_default()
}
