//! Shows what the eBPF program logs: for work on the program itself.
//!
//! ```text
//! HG_BPF_FEATURES=bpf-log hg-ebpf/build.sh /tmp/hg-log.bpf.o
//! HG_BPF_OBJECT=/tmp/hg-log.bpf.o cargo run --example bpf_log -- PID [SECONDS]
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya_log::EbpfLogger;
use hg_top::source::ebpf::EbpfSource;

/// Log records to stdout, one a line.
struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("{} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let pid = words.next().and_then(|word| word.parse().ok()).context("usage: bpf_log PID [SECONDS]")?;
    let seconds = words.next().map_or(Ok(10), |word| word.parse()).context("seconds")?;
    ensure!(std::env::var_os("HG_BPF_OBJECT").is_some(), "HG_BPF_OBJECT has to name an object built with bpf-log");
    let mut source = EbpfSource::attach(&[pid])?;
    let program = aya::programs::loaded_programs()
        .filter_map(Result::ok)
        .filter(|program| program.name_as_str() == Some("probe"))
        .max_by_key(|program| program.id())
        .context("no program in the kernel")?;
    let mut logger = EbpfLogger::init_from_id_with_logger(program.id(), Lines).context("the object does not log")?;
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        logger.flush();
        let sample = source.poll()?;
        if sample.lost.iter().any(|lost| *lost > 0) {
            println!("lost {:?}", sample.lost);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
