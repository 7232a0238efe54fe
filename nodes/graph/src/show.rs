//! A plan for people: a table, a Graphviz picture, a Mermaid picture.

use std::fmt::Write as _;

use crate::check::{latency, memory};
use crate::plan::{Cap, Full, Plan, PlannedEdge};

pub use crate::check::latency::PathLatency;
pub use crate::check::memory::Bound;

/// The slowest way to every sink.
pub fn latencies(plan: &Plan) -> Vec<PathLatency> {
    latency::of_plan(plan)
}

/// Worst-case bytes of queues and nodes, as far as they can be known.
pub fn memory(plan: &Plan) -> Bound {
    memory::bound(plan)
}

/// A capacity as graph files write it: "8 items or 500ms".
pub fn cap(cap: &Cap) -> String {
    let mut parts = Vec::new();
    if let Some(n) = cap.items {
        parts.push(if n == 1 { "1 item".into() } else { format!("{n} items") });
    }
    if let Some(time) = cap.time {
        parts.push(time.to_string());
    }
    if let Some(n) = cap.bytes {
        parts.push(bytes(n));
    }
    parts.join(" or ")
}

/// A policy as graph files write it.
pub fn full(full: Full) -> &'static str {
    match full {
        Full::Block => "block",
        Full::DropOldest => "drop-oldest",
        Full::DropNewest => "drop-newest",
        Full::Latest => "latest",
        Full::Fail => "fail",
    }
}

/// "1.5 MiB".
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

fn ends(plan: &Plan, edge: &PlannedEdge) -> (String, String) {
    let (from, to) = (&plan.nodes[edge.from.0], &plan.nodes[edge.to.0]);
    (
        format!("{}.{}", from.name, from.declared.outputs[edge.from.1].name),
        format!("{}.{}", to.name, to.declared.inputs[edge.to.1].name),
    )
}

/// Everything the check knows, as text.
pub fn show(plan: &Plan) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_show(plan, &mut out);
    out
}

fn write_show(plan: &Plan, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "graph {} (clock {}, drain {:?})",
        plan.name,
        format!("{:?}", plan.clock).to_lowercase(),
        plan.drain
    )?;
    if !plan.models.is_empty() {
        writeln!(out, "\nmodels")?;
        let rows = plan.models.iter().map(|m| {
            let users = plan.nodes.iter().filter(|n| n.model.is_some_and(|i| plan.models[i].name == m.name));
            let users: Vec<&str> = users.map(|n| &*n.name).collect();
            vec![
                m.name.to_string(),
                m.kind.kind().into(),
                format!("class {:?}", m.class).to_lowercase(),
                format!("batch {}", m.batch_max),
                format!("for {}", if users.is_empty() { "options that name it".into() } else { users.join(", ") }),
            ]
        });
        table(rows.collect(), out)?;
    }
    writeln!(out, "\nnodes")?;
    let rows = plan.nodes.iter().map(|n| {
        let mut extra = Vec::new();
        if n.inserted {
            extra.push("put in by the loader".to_string());
        }
        if let Some(scope) = n.scope {
            extra.push(format!("scope {}", plan.scopes[scope].name));
        }
        if !n.cancels.is_empty() {
            let names: Vec<&str> = n.cancels.iter().map(|&s| &*plan.scopes[s].name).collect();
            extra.push(format!("cancels {}", names.join(", ")));
        }
        let (least, most) = n.declared.latency;
        let latency = if most.0.is_zero() { String::new() } else { format!("{least} to {most}") };
        let memory = n.declared.memory.map_or_else(String::new, |m| format!("≤ {}", bytes(m)));
        vec![n.name.to_string(), n.kind.to_string(), latency, memory, extra.join("; ")]
    });
    table(rows.collect(), out)?;
    writeln!(out, "\nedges")?;
    let rows = plan.edges.iter().map(|e| {
        let (from, to) = ends(plan, e);
        let size = memory::edge(&e.cap, &e.ty).map_or_else(|| "no bound".into(), |b| format!("≤ {}", bytes(b)));
        let feedback = if e.feedback { "feedback" } else { "" };
        vec![
            format!("{from} → {to}"),
            crate::check::say_type(&e.ty),
            cap(&e.cap),
            full(e.full).into(),
            size,
            feedback.into(),
        ]
    });
    table(rows.collect(), out)?;
    writeln!(out, "\nlatency, worst path to each end")?;
    let rows = latencies(plan).into_iter().map(|p| {
        let parts: Vec<String> = p.parts.iter().map(|(name, span)| format!("{name} {span}")).collect();
        vec![p.sink, format!("{} to {}", p.min, p.max), parts.join(" + ")]
    });
    table(rows.collect(), out)?;
    let bound = memory(plan);
    match bound.total() {
        Some(total) => writeln!(out, "\nmemory of queues and nodes: at most {} (weights not counted)", bytes(total))?,
        None => {
            writeln!(out, "\nmemory of queues and nodes: {} where it is known; not known for", bytes(bound.known))?;
            for what in bound.unknown.iter().take(20) {
                writeln!(out, "  {what}")?;
            }
            if bound.unknown.len() > 20 {
                writeln!(out, "  and {} more", bound.unknown.len() - 20)?;
            }
        }
    }
    if !plan.notes.is_empty() {
        writeln!(out)?;
        for note in &plan.notes {
            writeln!(out, "{note}")?;
        }
    }
    Ok(())
}

fn table(rows: Vec<Vec<String>>, out: &mut String) -> std::fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0))
        .collect();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths).filter(|(_, w)| **w > 0) {
            let pad = width - cell.chars().count();
            write!(line, " {cell}{} ", " ".repeat(pad))?;
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn label(edge: &PlannedEdge) -> String {
    let mut text = format!("{} · {}", crate::check::say_type(&edge.ty), cap(&edge.cap));
    if edge.full != Full::Block {
        text += &format!(" · {}", full(edge.full));
    }
    text
}

/// Graphviz: `oxiline graph dot g.toml | dot -Tsvg`.
pub fn dot(plan: &Plan) -> String {
    let quote = |s: &str| format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\""));
    let mut out = format!(
        "digraph {} {{\n  rankdir=LR;\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n",
        quote(&plan.name)
    );
    for node in &plan.nodes {
        let dashed = if node.inserted { ", style=\"rounded,dashed\"" } else { "" };
        let text = format!("{}\\n{}", node.name.replace('"', "'"), node.kind);
        out += &format!("  {} [label=\"{text}\"{dashed}];\n", quote(&node.name));
    }
    for (i, model) in plan.models.iter().enumerate() {
        let id = quote(&format!("model {}", model.name));
        out +=
            &format!("  {id} [label={}, shape=cylinder];\n", quote(&format!("{} ({})", model.name, model.kind.kind())));
        for node in plan.nodes.iter().filter(|n| n.model == Some(i)) {
            out += &format!("  {id} -> {} [style=dotted, arrowhead=none];\n", quote(&node.name));
        }
    }
    for edge in &plan.edges {
        let style = if edge.feedback { ", style=dashed, constraint=false" } else { "" };
        out += &format!(
            "  {} -> {} [label={}{style}];\n",
            quote(&plan.nodes[edge.from.0].name),
            quote(&plan.nodes[edge.to.0].name),
            quote(&label(edge))
        );
    }
    out + "}\n"
}

/// Mermaid, for Markdown.
pub fn mermaid(plan: &Plan) -> String {
    let mut out = String::from("flowchart LR\n");
    for (i, node) in plan.nodes.iter().enumerate() {
        let (open, close) = if node.inserted { ("([", "])") } else { ("[", "]") };
        out += &format!("  n{i}{open}\"{}<br/>{}\"{close}\n", node.name, node.kind);
    }
    for (i, model) in plan.models.iter().enumerate() {
        out += &format!("  m{i}[(\"{} ({})\")]\n", model.name, model.kind.kind());
        for (n, _) in plan.nodes.iter().enumerate().filter(|(_, n)| n.model == Some(i)) {
            out += &format!("  m{i} -.- n{n}\n");
        }
    }
    for edge in &plan.edges {
        let arrow = if edge.feedback { "-.->" } else { "-->" };
        out += &format!("  n{} {arrow}|\"{}\"| n{}\n", edge.from.0, label(edge), edge.to.0);
    }
    out
}
