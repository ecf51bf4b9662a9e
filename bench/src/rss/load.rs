//! The loads by name.

use clap::ValueEnum;

use super::{churn, plateau, threads};

/// A load whose resident memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Load {
    /// A random one of 10 000 blocks is replaced, 16 bytes to 1 MiB, little of each touched.
    Fragmentation,
    /// Blocks of 256 bytes to 64 KiB come, grow and go, all bytes written.
    FragmentationChurn,
    /// Keys and values are set, read and deleted.
    KvStore,
    /// Eight threads, each with a working set of its own.
    WorkingSet,
    /// 64 MiB of aligned 64 KiB blocks, five times.
    Plateau,
    /// 2 GiB in blocks of 8 MiB.
    Reclaim,
    /// One thread allocates, four free, five times.
    Phases,
    /// Most small blocks are freed, one in 64 stays for a while.
    Survivors,
    /// Four producers, four consumers.
    Pipeline,
    /// Eight threads send each other half of their blocks.
    Remote,
    /// 400 threads, one after the other.
    ThreadExit,
    /// Eight generations of an owner whose blocks another thread frees.
    Turnover,
}

impl Load {
    /// The load of a name.
    pub(crate) fn named(name: &str) -> Option<Load> {
        Load::from_str(name, false).ok()
    }

    /// Its name on the command line and in the tables.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }

    /// What it does, in a sentence.
    pub(crate) fn about(self) -> String {
        let value = self.to_possible_value();
        value.as_ref().and_then(|value| value.get_help()).map_or_else(String::new, ToString::to_string)
    }

    /// Sets up the tables of the load; what is returned runs it and frees all its blocks.
    pub(crate) fn prepare(self, quick: bool) -> Box<dyn FnOnce()> {
        match self {
            Load::Fragmentation => churn::fragmentation(quick),
            Load::FragmentationChurn => churn::fragmentation_churn(quick),
            Load::KvStore => churn::kv_store(quick),
            Load::WorkingSet => churn::working_set(quick),
            Load::Plateau => plateau::plateau(quick),
            Load::Reclaim => plateau::reclaim(quick),
            Load::Phases => plateau::phases(quick),
            Load::Survivors => plateau::survivors(quick),
            Load::Pipeline => threads::pipeline(quick),
            Load::Remote => threads::remote(quick),
            Load::ThreadExit => threads::thread_exit(quick),
            Load::Turnover => threads::turnover(quick),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_is_found_by_its_name_and_says_what_it_does() {
        for &load in Load::value_variants() {
            assert_eq!(Load::named(&load.name()), Some(load));
            assert!(load.about().len() > 10, "{load:?}");
        }
    }

    #[test]
    fn a_quick_load_runs_and_frees_all() {
        for load in [Load::ThreadExit, Load::Turnover, Load::Survivors] {
            load.prepare(true)();
        }
    }
}
