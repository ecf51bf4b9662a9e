//! Which allocators are compared, and where their libraries are.

use std::path::{Path, PathBuf};
use std::process::Command;

/// One allocator.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its name in the table.
    pub(crate) name: String,
    /// The library to preload, or `None` for the C library's own allocator.
    pub(crate) library: Option<PathBuf>,
    /// Variables of its environment.
    pub(crate) variables: Vec<(&'static str, &'static str)>,
}

/// Allocators looked for on the system: name, and how the file name of their library starts.
const KNOWN: [(&str, &str); 5] = [
    ("mimalloc", "libmimalloc.so"),
    ("jemalloc", "libjemalloc.so"),
    ("tcmalloc", "libtcmalloc_minimal.so"),
    ("snmalloc", "libsnmallocshim.so"),
    ("rpmalloc", "librpmalloc.so"),
];

impl Peer {
    /// A peer without variables.
    pub(crate) fn new(name: &str, library: Option<PathBuf>) -> Peer {
        Peer { name: name.into(), library, variables: Vec::new() }
    }

    /// A peer given as `NAME=PATH`.
    pub(crate) fn parse(word: &str) -> Result<Peer, String> {
        match word.split_once('=') {
            Some((name, path)) if !name.is_empty() && Path::new(path).is_file() => {
                Ok(Peer::new(name, Some(path.into())))
            }
            Some((_, path)) => Err(format!("{path} is no file")),
            None => Err("NAME=PATH".into()),
        }
    }

    /// The C library's own allocator.
    pub(crate) fn glibc() -> Peer {
        Peer::new("glibc", None)
    }

    /// hg: the library given, or the one beside this program. Under `cargo run` it is built first, so that what is
    /// measured is what the sources say.
    pub(crate) fn hg(given: Option<&Path>) -> Result<Peer, String> {
        let exe = std::env::current_exe().map_err(|error| error.to_string())?;
        let beside = exe.with_file_name("libhg_preload.so");
        if given.is_none()
            && let Some(cargo) = std::env::var_os("CARGO")
            && let Some(target) = exe.parent().and_then(Path::parent)
        {
            let mut build = Command::new(cargo);
            build.args(["build", "--release", "--package", "hg-preload", "--target-dir"]).arg(target);
            if !build.status().is_ok_and(|status| status.success()) {
                return Err(format!("{build:?} failed"));
            }
        }
        if cfg!(debug_assertions) {
            eprintln!("hg-bench: this is a debug build; figures say nothing (use cargo run --release)");
        }
        let library = given.map_or(beside, Path::to_path_buf);
        if !library.is_file() {
            return Err(format!("{} is missing: cargo build --release -p hg-preload", library.display()));
        }
        Ok(Peer::new("hg", Some(library)))
    }

    /// The same allocator under another name, with a variable in its environment.
    pub(crate) fn with(&self, name: &str, variable: (&'static str, &'static str)) -> Peer {
        let mut other = Peer { name: name.into(), ..self.clone() };
        other.variables.push(variable);
        other
    }

    /// This program as a child under the allocator.
    pub(crate) fn command(&self) -> Result<Command, String> {
        let mut child = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
        child.env_remove("LD_PRELOAD").envs(self.variables.iter().copied());
        if let Some(library) = &self.library {
            child.env("LD_PRELOAD", library);
        }
        Ok(child)
    }
}

/// The known allocators that are installed, in the folders where the loader looks.
pub(crate) fn installed() -> Vec<Peer> {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let folders = ["/usr/local/lib".into(), format!("/usr/lib/{triple}"), "/usr/lib64".into(), "/usr/lib".into()];
    let find = |start: &str| {
        let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let mut found: Vec<_> = files.map(|file| file.path()).filter(|path| is_library(path, start)).collect();
        // Several names are links to one file; the longest tells the version.
        found.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
        found.into_iter().next()
    };
    KNOWN.iter().filter_map(|&(name, start)| Some(Peer::new(name, Some(find(start)?)))).collect()
}

fn is_library(path: &Path, start: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    name.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) && path.is_file()
}
