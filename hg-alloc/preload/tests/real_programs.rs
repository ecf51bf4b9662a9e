//! Real programs under the library: each must say the same, byte for byte, as without it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{installed, library, run, skip};

/// A folder for the files of one test, empty at first.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(common::SCRATCH).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).expect("an old folder removed");
    }
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Runs a command twice, without and with the library; both must succeed and print the same, and something.
fn same_output(command: &dyn Fn() -> Command) {
    let plain = run(&mut command());
    let ours = run(command().env("LD_PRELOAD", library()));
    assert!(plain.success, "without the library: {:?}\n{}", command(), plain.stderr);
    assert!(ours.success, "{:?}\n{}", command(), ours.stderr);
    assert!(!plain.stdout.is_empty(), "{:?} printed nothing", command());
    assert!(ours.stdout == plain.stdout, "{:?}: outputs differ", command());
}

fn shell(script: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(folder);
    command
}

#[test]
fn the_library_is_in_the_programs_it_is_preloaded_into() {
    let ours = run(Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", library()));
    let maps = String::from_utf8_lossy(&ours.stdout).into_owned();
    assert!(ours.success && maps.contains("libhg_preload.so"), "{maps}{}", ours.stderr);
}

#[test]
fn compiler_writes_the_same_object() {
    if !installed("c++") {
        return;
    }
    let folder = folder("compiler");
    let source = "#include <algorithm>\n#include <map>\n#include <regex>\n#include <string>\n\
        int f(std::map<std::string, int> &m, const std::string &s) {\n\
        std::regex r(\"[a-z]+([0-9]*)\"); std::smatch w; if (std::regex_match(s, w, r)) m[w[1]]++; return m.size(); }\n";
    fs::write(folder.join("unit.cpp"), source).expect("a source");
    same_output(&|| shell("c++ -O2 -c unit.cpp -o unit.o && cat unit.o", &folder));
}

#[test]
fn git_logs_and_packs_the_same() {
    if !installed("git") {
        return;
    }
    let folder = folder("git");
    let history = "git init -q . && git config user.email a@b && git config user.name a && \
        export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' && \
        for i in $(seq 60); do seq $i $((i * 40)) > file$((i % 7)); git add . && git commit -qm \"change $i\"; done && echo done";
    let made = run(shell(history, &folder).env("LD_PRELOAD", library()));
    assert!(made.success, "{}", made.stderr);
    same_output(&|| {
        shell("git log -p --stat && git fsck --full --strict 2>&1 && git repack -adq && git count-objects", &folder)
    });
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if repository.join(".git").exists() {
        same_output(&|| shell("git -c safe.directory='*' log --stat --no-color", &repository));
    } else {
        skip("these sources are no git repository; its log is left out");
    }
}

#[test]
fn node_computes_the_same() {
    if !installed("node") {
        return;
    }
    let script = "const { Worker, isMainThread, parentPort } = require('worker_threads');
        const work = () => {
            const words = new Map();
            for (let i = 0; i < 30000; i++) words.set('word' + (i * 7919) % 5021, Buffer.alloc(i % 3000, i % 251));
            const sum = require('crypto').createHash('sha256');
            for (const [key, value] of [...words].sort()) sum.update(key).update(value);
            return sum.digest('hex');
        };
        if (isMainThread) {
            const all = [1, 2].map(() => new Promise(done => new Worker(__filename).on('message', done)));
            Promise.all([work(), ...all]).then(sums => console.log(JSON.stringify(sums)));
        } else parentPort.postMessage(work());";
    let folder = folder("node");
    fs::write(folder.join("script.js"), script).expect("a script");
    same_output(&|| shell("node script.js", &folder));
}

#[test]
fn sort_and_perl_and_awk_agree_with_themselves() {
    let folder = folder("text");
    let lines = "awk 'BEGIN { s = 1; for (i = 0; i < 300000; i++) { s = (s * 69069 + 1) % 4294967296; print s, i } }'";
    same_output(&|| shell(&format!("{lines} > lines; sort --parallel=4 -S 4M lines"), &folder));
    if installed("perl") {
        let count = "perl -ne '$n{substr($_, 0, 4)} .= $_; END { print map { (\"$_ \", length($n{$_}), \"\\n\") } sort keys %n }'";
        same_output(&|| shell(&format!("{lines} | {count}"), &folder));
    }
    if installed("xz") {
        same_output(&|| {
            shell(
                &format!("{lines} | xz -T2 --block-size=1MiB -3 | tee packed | cksum; xz -dc packed | cksum"),
                &folder,
            )
        });
    }
}

#[test]
fn sqlite_answers_the_same() {
    if !installed("sqlite3") {
        return;
    }
    let script = "create table t(id integer primary key, word text, size int);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
        insert into t select i, printf('%08d', i * 7919 % 100003), i % 977 from n;
        create index w on t(word);
        select size, count(*), max(word), group_concat(id % 10, '') from t group by size order by size;
        delete from t where id % 3 = 0; vacuum; pragma integrity_check;";
    let folder = folder("sqlite");
    fs::write(folder.join("script.sql"), script).expect("a script");
    same_output(&|| shell("rm -f db && sqlite3 db < script.sql", &folder));
}

#[test]
fn python_passes_its_own_tests() {
    // Debian's own python keeps the test package apart; whichever python has it is taken.
    let has_tests = |python: &&&str| run(Command::new(python).args(["-c", "import test.test_json"])).success;
    let pythons = ["python3", "/usr/bin/python3"];
    let Some(python) = pythons.iter().filter(|p| p.starts_with('/') || installed(p)).find(has_tests) else {
        return skip("no python3 with its test package");
    };
    let modules = ["test_json", "test_dict", "test_list", "test_re", "test_thread", "test_gc", "test_fork1"];
    let folder = folder("python");
    let mut command = Command::new(python);
    // PYTHONMALLOC=malloc: every object of the interpreter comes from us, not from its pool allocator.
    command.args(["-m", "test"]).args(modules).env("PYTHONMALLOC", "malloc").env("LD_PRELOAD", library());
    let ours = run(command.current_dir(&folder));
    let stdout = String::from_utf8_lossy(&ours.stdout);
    assert!(ours.success && stdout.contains("SUCCESS"), "{stdout}{}", ours.stderr);
}
