//! Events, and the alerts that come of them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::seconds;
use crate::alert::Alert;
use crate::event::{Event, Value};

#[derive(Debug, Serialize)]
pub(super) struct EventEntry {
    time: f64,
    probe: &'static str,
    pid: u32,
    tid: u32,
    role: Option<String>,
    other: Option<Other>,
    stack_id: Option<u32>,
    stack: Vec<String>,
    #[serde(flatten)]
    args: BTreeMap<&'static str, Argument>,
}

/// The other thread that an event tells of.
#[derive(Debug, Serialize)]
struct Other {
    pid: Option<u32>,
    tid: u32,
    comm: String,
    state: &'static str,
    role: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Argument {
    Label(String),
    Number(i64),
    Large(u64),
}

#[derive(Debug, Serialize)]
pub(super) struct AlertEntry {
    alert: &'static str,
    pid: u32,
    role: Option<String>,
    subject: String,
    since: f64,
    last: f64,
    count: u64,
    evidence: String,
    next_step: &'static str,
    stack_id: Option<u32>,
    stack: Vec<String>,
}

pub(super) fn event(event: &Event) -> EventEntry {
    let argument = |value| match value {
        Value::Label(label) => Argument::Label(label),
        Value::Number(number) => Argument::Number(number),
        Value::Large(number) => Argument::Large(number),
    };
    EventEntry {
        time: seconds(event.time),
        probe: event.probe.name,
        pid: event.pid,
        tid: event.tid,
        role: event.role.clone(),
        other: event.other.as_ref().map(|who| Other {
            pid: Some(who.pid).filter(|pid| *pid != 0),
            tid: who.tid,
            comm: who.comm.clone(),
            state: who.state,
            role: who.role.clone(),
        }),
        stack_id: event.stack_id,
        stack: event.stack.clone(),
        args: event.args().map(|(name, value)| (name, argument(value))).collect(),
    }
}

pub(super) fn alert(alert: &Alert) -> AlertEntry {
    AlertEntry {
        alert: alert.kind.label(),
        pid: alert.pid,
        role: alert.role.clone(),
        subject: alert.subject.clone(),
        since: seconds(alert.since),
        last: seconds(alert.last),
        count: alert.count,
        evidence: alert.evidence.clone(),
        next_step: alert.next_step,
        stack_id: alert.stack_id,
        stack: alert.stack.clone(),
    }
}
