//! What other people's tracers see: bpftrace lists every probe, reads every argument, and runs our scripts. Where there is no
//! bpftrace, or nothing can be traced, the tests say so on stderr and do nothing.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use common::Fire;
use hg_probes::{PROBES, words};

fn cannot_run() -> Option<&'static str> {
    let there = Command::new("bpftrace").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_ok() { common::cannot_trace() } else { Some("bpftrace is not installed") }
}

/// A running bpftrace and what it has printed so far.
struct Tracer {
    child: Child,
    printed: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Tracer {
    /// Starts it on a process.
    fn start(pid: u32, arguments: &[&str]) -> Tracer {
        let mut child = Command::new("bpftrace")
            .args(["-B", "line", "-p", &pid.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bpftrace");
        let printed = Arc::new(Mutex::new(String::new()));
        let (output, into) = (child.stdout.take().expect("its output"), Arc::clone(&printed));
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let mut printed = into.lock().expect("no panic");
                printed.push_str(&line);
                printed.push('\n');
            }
        });
        Tracer { child, printed, reader }
    }

    fn printed(&self) -> String {
        self.printed.lock().expect("no panic").clone()
    }

    /// Waits until something is so, bpftrace ends, or half a minute is over.
    fn wait_until(&mut self, so: impl Fn(&Tracer) -> bool) {
        self.wait_for(1500, so);
    }

    /// The same, for so many times 20 ms.
    fn wait_for(&mut self, times: u32, so: impl Fn(&Tracer) -> bool) {
        for _ in 0..times {
            if so(self) || self.child.try_wait().expect("its state").is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it waits for what comes, all probes attached.
    fn is_waiting(&self) -> bool {
        let waits_in = std::fs::read_to_string(format!("/proc/{}/wchan", self.child.id())).unwrap_or_default();
        waits_in.contains("epoll") || waits_in.contains("ep_poll")
    }

    /// Asks it to end, and returns all it has printed.
    fn end(mut self) -> String {
        // A signal between its look at the flag and its wait goes unheard, so it is asked again, but only while it waits:
        // later a second one would cut off its last words.
        for _ in 0..30 {
            if self.child.try_wait().expect("its state").is_some() {
                break;
            }
            if self.is_waiting() {
                // SAFETY: the child has not been waited for, so the id is still its own.
                unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
            }
            self.wait_for(50, |_| false);
        }
        // That it has ended already is no error here.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.reader.join().expect("no panic");
        let mut complaints = String::new();
        let _ = self.child.stderr.take().expect("its complaints").read_to_string(&mut complaints);
        let printed = self.printed.lock().expect("no panic").clone();
        assert!(printed.contains("Attaching"), "bpftrace did not start:\n{printed}{complaints}");
        printed
    }
}

/// What bpftrace prints while `fire` fires, given that it listens to `probes` of its probes and prints `lines` at once.
fn traced(fire: &mut Fire, arguments: &[&str], probes: usize, lines: &[&str]) -> String {
    let pid = fire.pid();
    let mut tracer = Tracer::start(pid, arguments);
    tracer.wait_until(|tracer| common::listened_to(pid) >= probes && tracer.is_waiting());
    fire.fire();
    tracer.wait_until(|tracer| lines.iter().all(|line| tracer.printed().contains(line)));
    tracer.end()
}

#[test]
fn bpftrace_lists_and_reads_every_probe() {
    if let Some(why) = cannot_run() {
        return common::skipped("bpftrace_lists_and_reads_every_probe", why);
    }
    let path = common::fire().display().to_string();
    let listed = Command::new("bpftrace").args(["-l", &format!("usdt:{path}:hg:*")]).output().expect("bpftrace");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.rsplit(':').next()).collect();
    names.sort_unstable();
    let mut expected: Vec<&str> = PROBES.iter().map(|probe| probe.name).collect();
    expected.sort_unstable();
    assert_eq!(names, expected, "{listed}");

    let script: String = common::ONCE
        .iter()
        .map(|(probe, arguments)| {
            let name = probe.probe().name;
            let formats = " %lu".repeat(arguments.len());
            let values: String = (0..arguments.len()).map(|index| format!(", arg{index}")).collect();
            format!("usdt:{path}:hg:{name} {{ printf(\"seen {name}{formats}\\n\"{values}); }}\n")
        })
        .collect();
    let mut fire = Fire::start(&["once"]);
    let output = traced(&mut fire, &["-e", &script], PROBES.len(), &["seen sample_free"]);
    let seen: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("seen ")).collect();
    let fired: Vec<String> = common::ONCE
        .iter()
        .map(|(probe, arguments)| {
            let values: String = arguments.iter().map(|value| format!(" {value}")).collect();
            format!("{}{values}", probe.probe().name)
        })
        .collect();
    assert_eq!(seen, fired, "{output}");
    fire.end();
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpftrace");
    let mut scripts: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the scripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bt"))
        .collect();
    scripts.sort();
    scripts
}

/// The probes that a script listens to.
fn probes_of(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix("usdt:*:hg:")?.split(' ').next()).collect()
}

#[test]
fn our_scripts_name_arguments_and_words_as_the_catalogue_does() {
    assert_eq!(scripts().len(), 6);
    let labels = |all: Vec<(u64, &'static str)>| all;
    macro_rules! words_of {
        ($name:ident) => {
            labels(words::$name::ALL.iter().map(|word| (*word as u64, word.label())).collect())
        };
    }
    let known = BTreeMap::from([
        ("tier", words_of!(Tier)),
        ("cause", words_of!(Cause)),
        ("reason", words_of!(Reason)),
        ("stall", words_of!(StallKind)),
        ("kind", words_of!(CorruptionKind)),
    ]);
    for path in scripts() {
        let text = std::fs::read_to_string(&path).expect("a script");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let probes = probes_of(&text);
        assert!(!probes.is_empty(), "{name}");
        for probe in &probes {
            let known = PROBES.iter().find(|known| known.name == *probe);
            let known = known.unwrap_or_else(|| panic!("{name}: no probe {probe}"));
            let args: Vec<&str> = known.args.iter().map(|arg| arg.name).collect();
            let line = format!("// {probe}: {}", args.join(", "));
            assert!(text.lines().any(|other| other == line), "{name} should say: {line}");
        }
        // `@reason[0] = "refill";`
        let mut tables: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
        for line in text.lines().map(str::trim) {
            let Some((table, rest)) = line.strip_prefix('@').and_then(|line| line.split_once('[')) else { continue };
            let Some((number, label)) = rest.split_once("] = \"") else { continue };
            let number = number.parse().unwrap_or_else(|_| panic!("{name}: {line}"));
            tables.entry(table).or_default().push((number, label.trim_end_matches("\";")));
        }
        for (table, entries) in tables {
            assert_eq!(Some(&entries), known.get(table), "{name}: table {table}");
        }
    }
}

#[test]
fn our_scripts_run() {
    if let Some(why) = cannot_run() {
        return common::skipped("our_scripts_run", why);
    }
    // What each prints at once, and at its end.
    let at_once = BTreeMap::from([
        ("corruption.bt", vec!["arena 10: foreign pointer at 0x7fffdeadb000, class 48, detail 2"]),
        (
            "growth.bt",
            vec![
                "arena 1 grew from 16384 to 5242880 KiB, THP (exhausted), in 123 us",
                "arena 4 shrank from 65536 to 32768 KiB (above slack), in 9 us",
                "arena 2 was refused 2048 KiB: refused by the kernel, errno 12",
            ],
        ),
        ("stalls.bt", vec!["arena 9 lock 256 (refill): wait of 4200 us, holder 4250"]),
    ]);
    let at_end = BTreeMap::from([
        ("carve_reuse.bt", vec!["@carved[96]: 12", "@reused[96]: 20", "@refill_ns[96]: 450"]),
        ("failed_allocs.bt", vec!["@failed[11, request too large]: 1", "@bytes:", "@from["]),
        ("lock_hold.bt", vec!["@wait_ns[0, 2]:", "@hold_ns[128, 1]:", "[64, 128)"]),
    ]);
    for path in scripts() {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a script");
        let soon = at_once.get(name.as_str()).cloned().unwrap_or_default();
        let late = at_end.get(name.as_str()).cloned().unwrap_or_default();
        assert!(!soon.is_empty() || !late.is_empty(), "no expectation of {name}");
        let mut fire = Fire::start(&["once"]);
        let output = traced(&mut fire, &[&path.to_string_lossy()], probes_of(&text).len(), &soon);
        for line in soon.iter().chain(&late) {
            assert!(output.contains(line), "{name} should print {line:?}:\n{output}");
        }
        fire.end();
    }
}
