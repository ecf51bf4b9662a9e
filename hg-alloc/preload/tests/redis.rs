//! redis-server under the library: right replies while redis-benchmark loads it, a background save (a fork of a loaded
//! server) that succeeds, and a clean end.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{installed, library, run};

/// A server on a socket in the scratch folder; killed when dropped, however the test ends.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(name: &str, preload: bool) -> Server {
        let folder = Path::new(common::SCRATCH).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        // A socket's path is limited to 107 bytes, which a deep target folder exceeds.
        let socket = std::env::temp_dir().join(format!("hg-{name}-{}.sock", std::process::id()));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--enable-debug-command", "local", "--unixsocket"]).arg(&socket);
        command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if preload {
            command.env("LD_PRELOAD", library());
        }
        let server = Server { child: command.spawn().expect("redis-server"), socket };
        let begin = Instant::now();
        while !server.cli(&["PING"]).contains("PONG") {
            assert!(begin.elapsed() < Duration::from_secs(20), "the server does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    fn cli(&self, words: &[&str]) -> String {
        let ended = run(Command::new("redis-cli").arg("-s").arg(&self.socket).args(words));
        String::from_utf8_lossy(&ended.stdout).into_owned()
    }

    fn benchmark(&self) {
        let arguments = ["-n", "20000", "-c", "16", "-r", "5000", "-d", "300", "-P", "8", "--csv"];
        let tests = ["-t", "set,get,incr,lpush,rpop,sadd,hset,zadd,lrange_100,mset"];
        let ended = run(Command::new("redis-benchmark").arg("-s").arg(&self.socket).args(arguments).args(tests));
        let rows = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.success && rows.lines().count() >= 11, "{rows}{}", ended.stderr);
    }

    /// Replies to a fixed set of commands, the same for every sound server.
    fn replies(&self) -> Vec<String> {
        let fill = "for i = 1, 20000 do
                redis.call('SET', 'key' .. i, string.rep(string.char(97 + i % 26), i % 700))
                redis.call('RPUSH', 'list' .. i % 50, 'item' .. i)
                redis.call('HSET', 'hash' .. i % 20, 'field' .. i, i)
            end
            return redis.call('DBSIZE')";
        let check = "local bytes = 0
            for i = 1, 20000 do
                local value = redis.call('GET', 'key' .. i)
                if value ~= string.rep(string.char(97 + i % 26), i % 700) then return 'wrong value of key' .. i end
                bytes = bytes + #value
            end
            return bytes";
        let mut replies =
            vec![self.cli(&["FLUSHALL"]), self.cli(&["EVAL", fill, "0"]), self.cli(&["EVAL", check, "0"])];
        replies.push(self.cli(&["LRANGE", "list7", "0", "-1"]));
        replies.push(self.cli(&[
            "EVAL",
            "for i = 1, 20000, 2 do redis.call('DEL', 'key' .. i) end return redis.call('DBSIZE')",
            "0",
        ]));
        replies.push(self.cli(&["DEBUG", "RELOAD"]));
        replies.push(self.cli(&["HGET", "hash3", "field19983"]));
        replies
    }

    fn save_in_background(&self) {
        self.cli(&["BGSAVE"]);
        let begin = Instant::now();
        while self.cli(&["INFO", "persistence"]).contains("rdb_bgsave_in_progress:1") {
            assert!(begin.elapsed() < Duration::from_secs(60), "the background save does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(self.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    }

    fn end(mut self) {
        self.cli(&["SHUTDOWN", "NOSAVE"]);
        assert!(self.child.wait().expect("wait").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server has ended already on the way of success, which makes these two no-ops.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[test]
fn redis_gives_the_right_replies_under_load() {
    if !installed("redis-server") || !installed("redis-benchmark") {
        return;
    }
    let plain = Server::start("redis-plain", false);
    let expected = plain.replies();
    plain.end();

    let ours = Server::start("redis-ours", true);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", ours.child.id())).expect("maps");
    assert!(maps.contains("libhg_preload.so") && maps.contains("hg.stats"), "the server does not run on hg:\n{maps}");
    ours.benchmark();
    assert_eq!(ours.replies(), expected);
    ours.benchmark();
    ours.save_in_background();
    assert_eq!(ours.replies(), expected);
    ours.end();
}
