//! The order data flows in, and circles that nobody meant.

use super::Work;
use crate::load::message::Reports;

/// Nodes so that every edge but feedback goes forward; `Err`: the nodes of a circle, in order.
pub(crate) fn sort(nodes: usize, edges: &[(usize, usize)]) -> Result<Vec<usize>, Vec<usize>> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); nodes];
    let mut waiting = vec![0usize; nodes];
    for &(from, to) in edges {
        after[from].push(to);
        waiting[to] += 1;
    }
    let mut order: Vec<usize> = (0..nodes).filter(|&n| waiting[n] == 0).collect();
    let mut at = 0;
    while at < order.len() {
        for &next in &after[order[at]] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                order.push(next);
            }
        }
        at += 1;
    }
    if order.len() == nodes {
        return Ok(order);
    }
    // Every node left has a predecessor that is left: walk backwards until one comes again.
    let mut before: Vec<Option<usize>> = vec![None; nodes];
    for &(from, to) in edges {
        if waiting[from] > 0 && waiting[to] > 0 {
            before[to] = Some(from);
        }
    }
    let mut seen = vec![usize::MAX; nodes];
    let mut path = Vec::new();
    let mut node = (0..nodes).find(|&n| waiting[n] > 0).unwrap_or(0);
    while seen[node] == usize::MAX {
        seen[node] = path.len();
        path.push(node);
        node = before[node].unwrap_or(node);
    }
    let mut cycle = path.split_off(seen[node]);
    cycle.reverse();
    Err(cycle)
}

/// The order, or a message that prints the circle.
pub(crate) fn check(work: &Work<'_>, reports: &mut Reports) -> Option<Vec<usize>> {
    let forward: Vec<(usize, usize)> =
        work.edges.iter().filter(|e| !e.planned.feedback).map(|e| (e.planned.from.0, e.planned.to.0)).collect();
    match sort(work.nodes.len(), &forward) {
        Ok(order) => Some(order),
        Err(cycle) => {
            let start = (0..cycle.len()).min_by_key(|&i| cycle[i]).unwrap_or(0);
            let mut names: Vec<&str> =
                cycle[start..].iter().chain(&cycle[..start]).map(|&n| &*work.nodes[n].name).collect();
            names.push(names[0]);
            if names.len() > 12 {
                names.splice(6..names.len() - 5, ["…"]);
            }
            let (from, to) = (cycle[(start + cycle.len() - 1) % cycle.len()], cycle[start]);
            let edge =
                work.edges.iter().find(|e| !e.planned.feedback && e.planned.from.0 == from && e.planned.to.0 == to);
            let spot = edge.map_or(work.spots[to], |e| e.spot);
            reports.error(
                spot,
                format!(
                    "the graph goes in a circle: {}; mark the edge that closes it `feedback = true` with `full = \"latest\"` or \"drop-oldest\"",
                    names.join(" → ")
                ),
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_come_out_in_order() {
        assert_eq!(sort(3, &[(0, 1), (1, 2)]), Ok(vec![0, 1, 2]));
        let cycle = sort(5, &[(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]).unwrap_err();
        assert_eq!(cycle.len(), 3);
        for (i, &n) in cycle.iter().enumerate() {
            let next = cycle[(i + 1) % 3];
            assert!([(1, 2), (2, 3), (3, 1)].contains(&(n, next)), "{cycle:?}");
        }
        assert_eq!(sort(1, &[(0, 0)]), Err(vec![0]));
    }
}
