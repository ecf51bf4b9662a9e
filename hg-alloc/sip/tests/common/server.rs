//! A Kamailio or an OpenSIPS under the library on loopback, and calls through it by sipp.

use super::{SCRATCH, installed, library, signal, wait};
use std::fs::{self, File};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest time that calls may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// One server at a time: calls are judged by whether they are answered in time.
static TURN: Mutex<()> = Mutex::new(());

/// How calls go.
#[derive(Clone, Copy)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// Which server.
#[derive(Clone, Copy)]
pub(crate) enum Program<'a> {
    /// The one that is installed.
    Kamailio,
    /// One that was built in this folder, with its modules.
    OpenSips(&'a Path),
}

/// What a server is to be.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) program: Program<'a>,
    pub(crate) name: &'a str,
    pub(crate) workers: usize,
    /// Whether it runs under the library.
    pub(crate) is_preloaded: bool,
    /// Variables beside LD_PRELOAD.
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// Arguments beside those that every one gets.
    pub(crate) arguments: &'a [&'a str],
}

/// A server that runs; killed when dropped, however the test ends.
pub(crate) struct Server {
    child: Child,
    folder: PathBuf,
    log: PathBuf,
    port: u16,
    callee: u16,
    caller: u16,
    _turn: MutexGuard<'static, ()>,
}

/// How calls went.
#[must_use]
pub(crate) struct Answers {
    /// Whether none failed.
    pub(crate) is_complete: bool,
    /// How long answers took, milliseconds, ascending.
    times: Vec<f64>,
}

impl Answers {
    /// From a file of lines `date;milliseconds;number`.
    fn read(file: &Path, is_complete: bool) -> Answers {
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut times: Vec<f64> = text.lines().filter_map(|line| line.split(';').nth(1)?.parse().ok()).collect();
        times.sort_by(f64::total_cmp);
        Answers { is_complete, times }
    }

    /// Milliseconds in which 99 of 100 answers came.
    pub(crate) fn p99(&self) -> f64 {
        self.times.get(self.times.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    }
}

/// How a server ended.
pub(crate) struct Ended {
    pub(crate) is_clean: bool,
    pub(crate) log: String,
}

/// A port of loopback that is free for UDP and TCP.
fn free_port() -> u16 {
    (0..100)
        .find_map(|_| {
            let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let port = udp.local_addr().expect("an address").port();
            TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
        })
        .expect("a free port")
}

/// What both servers do with a request; `relay` is done to a call that is not busy.
fn routes(relay: &str, reply: [&str; 3]) -> String {
    let [missing, fine, busy] = reply;
    format!(
        "if (has_totag()) {{
            if (loose_route()) {{ t_relay(); exit; }}
            if (is_method(\"ACK\")) {{ if (t_check_trans()) t_relay(); exit; }}
            sl_send_reply({missing}, \"Not here\"); exit;
         }}
         if (is_method(\"ACK\")) {{ if (t_check_trans()) t_relay(); exit; }}
         if (!is_method(\"INVITE\")) {{ sl_send_reply({fine}, \"OK\"); exit; }}
         if ($rU == \"busy\") {{ t_newtran(); t_reply({busy}, \"Busy Here\"); exit; }}
         record_route(); {relay} t_relay();\n"
    )
}

fn load(modules: &[&str]) -> String {
    modules.iter().map(|module| format!("loadmodule \"{module}.so\"\n")).collect()
}

fn kamailio(port: u16, callee: u16, workers: usize, control: &str) -> String {
    let modules = load(&["tm", "sl", "rr", "pv", "textops", "siputils", "dialog", "kex", "corex", "ctl"]);
    let relay = format!("setflag(4); $ru = \"sip:callee@127.0.0.1:{callee};transport=\" + $proto;");
    let routes = routes(&relay, ["\"404\"", "\"200\"", "\"486\""]);
    format!(
        "debug=2\nlog_stderror=yes\nauto_aliases=no\nchildren={workers}\ntcp_children={workers}\nmemlog=2\nmem_summary=3\n\
         listen=udp:127.0.0.1:{port}\nlisten=tcp:127.0.0.1:{port}\n{modules}\
         modparam(\"ctl\", \"binrpc\", \"unix:{control}\")\nmodparam(\"dialog\", \"dlg_flag\", 4)\n\
         request_route {{ {routes} }}\n"
    )
}

fn opensips(port: u16, callee: u16, workers: usize, built: &Path) -> String {
    let modules = load(&["proto_udp", "proto_tcp", "signaling", "sl", "tm", "rr", "dialog", "sipmsgops"]);
    let relay = format!("create_dialog(); $ru = \"sip:callee@127.0.0.1:{callee};transport=\" + $socket_in(proto);");
    let (routes, modules_path) = (routes(&relay, ["404", "200", "486"]), built.join("modules"));
    format!(
        "log_level=1\nstderror_enabled=yes\nsyslog_enabled=no\nauto_aliases=no\nudp_workers={workers}\ntcp_workers={workers}\n\
         socket=udp:127.0.0.1:{port}\nsocket=tcp:127.0.0.1:{port}\nmpath=\"{0}/\"\n{modules}\
         route {{ {routes} }}\n",
        modules_path.display()
    )
}

impl Server {
    /// Starts a server, and waits until it answers. `None` where something is not installed, which is said.
    pub(crate) fn start(setup: &Setup) -> Option<Server> {
        let program = match setup.program {
            Program::Kamailio => installed("kamcmd").and_then(|_| installed("kamailio"))?,
            Program::OpenSips(built) => built.join("opensips"),
        };
        installed("sipp")?;
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // A socket's path is limited to 107 bytes, which a deep target folder exceeds.
        let folder = std::env::temp_dir().join(format!("hg-sip-{}-{}", setup.name, std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let (port, callee, caller) = (free_port(), free_port(), free_port());
        let file = folder.join("server.cfg");
        let log = PathBuf::from(SCRATCH).join(format!("server-{}.log", setup.name));
        let mut command = Command::new(program);
        command.arg("-f").arg(&file).args(["-m", "128", "-M", "8"]);
        let text = match setup.program {
            Program::Kamailio => {
                command.args(["-DD", "-E", "-Y"]).arg(&folder);
                let control = folder.join("control");
                kamailio(port, callee, setup.workers, control.to_str().expect("a path"))
            }
            Program::OpenSips(built) => {
                command.arg("-F");
                opensips(port, callee, setup.workers, built)
            }
        };
        fs::write(&file, text).expect("a configuration");
        command.args(setup.arguments).envs(setup.environment.iter().copied());
        if setup.is_preloaded {
            command.env("LD_PRELOAD", library());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).expect("a log"));
        let child = command.spawn().expect("the server");
        let server = Server { child, folder, log, port, callee, caller, _turn: turn };
        server.await_answer();
        Some(server)
    }

    fn await_answer(&self) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let local = socket.local_addr().expect("an address");
        let request = format!(
            "OPTIONS sip:127.0.0.1:{0} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKhg\r\nFrom: <sip:hg@{local}>;tag=1\r\n\
             To: <sip:127.0.0.1:{0}>\r\nCall-ID: hg\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
            self.port
        );
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let begin = Instant::now();
        loop {
            let sent = socket.send_to(request.as_bytes(), ("127.0.0.1", self.port));
            if sent.is_ok() && socket.recv(&mut [0; 2048]).is_ok() {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "no answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the server and the library wrote.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).expect("the log")).into_owned()
    }

    /// The main process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All of the server's processes: the main one and its children.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let pid = self.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
        children.split_whitespace().map(|child| child.parse().expect("a number")).chain([pid]).collect()
    }

    fn sipp(&self, scenario: &str, port: u16, transport: Transport) -> Command {
        let mut command = Command::new(installed("sipp").expect("sipp"));
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sipp").join(scenario);
        let transport = match transport {
            Transport::Udp => "u1",
            Transport::Tcp => "t1",
        };
        command.arg("-sf").arg(file).args(["-i", "127.0.0.1", "-p", &port.to_string(), "-t", transport, "-nostdin"]);
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn call(&self, scenario: &str, service: &str, calls: usize, rate: usize, transport: Transport) -> Answers {
        let mut caller = self.sipp(scenario, self.caller, transport);
        caller.args(["-s", service, "-m", &calls.to_string(), "-r", &rate.to_string(), "-timeout", "40"]);
        let mut caller = caller.arg("-trace_rtt").arg(format!("127.0.0.1:{}", self.port)).spawn().expect("sipp");
        let status = wait(&mut caller, PATIENCE);
        let file = format!("{}_{}_rtt.csv", scenario.trim_end_matches(".xml"), caller.id());
        // sipp's status is 0 if no call failed.
        Answers::read(&self.folder.join(file), status.is_some_and(|status| status.success()))
    }

    /// Calls that the server itself answers 486.
    pub(crate) fn busy_calls(&self, calls: usize, rate: usize, transport: Transport) -> Answers {
        self.call("busy.xml", "busy", calls, rate, transport)
    }

    /// Calls through the server.
    pub(crate) fn relayed_calls(&self, calls: usize, rate: usize, transport: Transport) -> Answers {
        let mut callee = self.sipp("callee.xml", self.callee, transport).spawn().expect("sipp");
        std::thread::sleep(Duration::from_millis(300));
        let answers = self.call("caller.xml", "callee", calls, rate, transport);
        callee.kill().expect("kill");
        callee.wait().expect("wait");
        answers
    }

    /// Asks the server something; the answer's text.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let mut command = Command::new(installed("kamcmd").expect("kamcmd"));
        command.arg("-s").arg(format!("unix:{}", self.folder.join("control").display())).args(words);
        let output = command.stdin(Stdio::null()).output().expect("kamcmd");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Ends the server as an operator does.
    pub(crate) fn end(self) -> Ended {
        signal(self.pid(), libc::SIGTERM);
        self.wait()
    }

    /// Waits for the server's end.
    pub(crate) fn wait(mut self) -> Ended {
        let status = wait(&mut self.child, Duration::from_secs(20));
        Ended { is_clean: status.is_some_and(|status| status.success()), log: self.log() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            // Workers end when their parent does so in good order only.
            signal(self.pid(), libc::SIGTERM);
            let _ = wait(&mut self.child, Duration::from_secs(10));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The numbers of one kind in an answer, such as all lines `used: 17`.
pub(crate) fn numbers(answer: &str, name: &str) -> Vec<u64> {
    let lines = answer.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    lines.map(|number| number.parse().expect("a number")).collect()
}
