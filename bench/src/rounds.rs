//! The interleaved rounds: each allocator in a child of its own, once a round.

use crate::patterns::Pattern;
use crate::peers::Peer;

/// First word of a child's command line.
pub(crate) const CHILD: &str = "__pattern";

/// Times of an operation in ns: one list a peer, one entry a round.
pub(crate) fn run(pattern: Pattern, peers: &[Peer], rounds: u32) -> Result<Vec<Vec<f64>>, String> {
    let mut times = vec![Vec::new(); peers.len()];
    for round in 0..rounds as usize {
        // The order turns from round to round, so that none always runs behind the same other.
        for index in (0..peers.len()).map(|k| (k + round) % peers.len()) {
            times[index].push(measure(pattern, &peers[index])?);
        }
    }
    Ok(times)
}

fn measure(pattern: Pattern, peer: &Peer) -> Result<f64, String> {
    let mut child = peer.command()?;
    child.args([CHILD, pattern.name()]);
    let output = child.output().map_err(|error| error.to_string())?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    // The loader only warns about a library that it cannot preload; the child would then measure glibc.
    if !output.status.success() || stderr.contains("cannot be preloaded") {
        return Err(format!("{} under {}: {}\n{stderr}", pattern.name(), peer.name, output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| format!("{} under {} printed {text:?}", pattern.name(), peer.name))
}
