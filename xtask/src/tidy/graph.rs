//! Cycles of a directed graph whose nodes are numbers. The graphs are small (the files of a crate), so
//! one breadth-first search from each node is enough.

use std::collections::{BTreeSet, VecDeque};

/// For each node the nodes that it points to.
pub type Edges = Vec<BTreeSet<usize>>;

/// The strongly connected components of more than one node, largest first.
pub fn components(edges: &Edges) -> Vec<BTreeSet<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..edges.len()).map(|node| reach(edges, node)).collect();
    let mut components: Vec<BTreeSet<usize>> = Vec::new();
    for (node, reached_here) in reached.iter().enumerate() {
        if components.iter().any(|component| component.contains(&node)) {
            continue;
        }
        let back = reached_here.iter().copied().filter(|other| reached[*other].contains(&node));
        let component: BTreeSet<usize> = back.collect();
        if component.len() > 1 {
            components.push(component);
        }
    }
    components.sort_by_key(|component| std::cmp::Reverse(component.len()));
    components
}

/// The nodes that a walk of one step or more can reach.
fn reach(edges: &Edges, start: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(node) = waiting.pop() {
        waiting.extend(edges[node].iter().filter(|next| reached.insert(**next)));
    }
    reached
}

/// One shortest cycle among the nodes of a component, without its return to the first node.
pub fn shortest_cycle(edges: &Edges, component: &BTreeSet<usize>) -> Vec<usize> {
    let cycles = component.iter().filter_map(|start| cycle_from(edges, *start));
    cycles.min_by_key(Vec::len).unwrap_or_default()
}

fn cycle_from(edges: &Edges, start: usize) -> Option<Vec<usize>> {
    let mut came_from: Vec<Option<usize>> = vec![None; edges.len()];
    let mut waiting = VecDeque::from([start]);
    while let Some(node) = waiting.pop_front() {
        for next in &edges[node] {
            if *next == start {
                let mut cycle = vec![node];
                while let Some(before) = came_from[cycle[cycle.len() - 1]] {
                    cycle.push(before);
                }
                cycle.reverse();
                return Some(cycle);
            }
            if came_from[*next].is_none() {
                came_from[*next] = Some(node);
                waiting.push_back(*next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[&[usize]]) -> Edges {
        edges.iter().map(|next| next.iter().copied().collect()).collect()
    }

    #[test]
    fn components_are_found_and_a_chain_is_none() {
        let chain = graph(&[&[1], &[2], &[]]);
        assert_eq!(components(&chain), []);
        // 1 and 2; 3, 4 and 5; an edge between the two, and 0 before both.
        let edges = graph(&[&[1, 3], &[2], &[1, 3], &[4], &[5], &[3]]);
        let found = components(&edges);
        assert_eq!(found, [BTreeSet::from([3, 4, 5]), BTreeSet::from([1, 2])]);
    }

    #[test]
    fn the_shortest_cycle_is_shown() {
        let edges = graph(&[&[1], &[2], &[3, 0], &[0]]);
        let component = &components(&edges)[0];
        assert_eq!(component.len(), 4);
        assert_eq!(shortest_cycle(&edges, component), [0, 1, 2]);
    }
}
