//! Sends the requests of a scenario and writes down the answers in a form that can be compared.

use std::{collections::HashMap, fmt::Write};

use http_body_util::BodyExt;
use kube::Client;
use serde_json::{Map, Value};

/// The answers of a real kube-apiserver.
pub(crate) const RECORDED: &str = include_str!("real.txt");

/// One request, and what of the answer matters.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    name: &'static str,
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
    /// JSON pointers into the answer. Errors are shown whole.
    show: &'static [&'static str],
    /// Only the reason of an error is compared: its message comes from Go's decoder.
    terse: bool,
}

impl Step {
    pub(crate) fn new(name: &'static str, method: &'static str, path: impl Into<String>) -> Self {
        Self {
            name,
            method,
            path: path.into(),
            headers: Vec::new(),
            body: String::new(),
            show: &[],
            terse: false,
        }
    }

    pub(crate) fn body(mut self, body: &Value) -> Self {
        self.body = body.to_string();
        self
    }

    pub(crate) fn raw(mut self, body: &str) -> Self {
        self.body = body.to_owned();
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn show(mut self, pointers: &'static [&'static str]) -> Self {
        self.show = pointers;
        self
    }

    pub(crate) fn terse(mut self) -> Self {
        self.terse = true;
        self
    }
}

/// Replaces what differs from run to run, keeping what is equal equal.
#[derive(Default)]
struct Names {
    versions: HashMap<String, usize>,
    uids: Vec<String>,
}

impl Names {
    fn version(&mut self, text: &str) -> String {
        let next = self.versions.len() + 1;
        format!(
            "<version {}>",
            self.versions.entry(text.to_owned()).or_insert(next)
        )
    }

    /// UIDs are known from the metadata of earlier answers.
    fn text(&mut self, text: &str) -> String {
        let mut text = newest_wording(text);
        for (index, uid) in self.uids.iter().enumerate() {
            text = text.replace(uid, &format!("<uid {}>", index + 1));
        }
        for (version, index) in &self.versions {
            for quoted in [format!("({version})"), format!(": {version}")] {
                let named = quoted.replace(version.as_str(), &format!("<version {index}>"));
                text = text.replace(&quoted, &named);
            }
        }
        text
    }

    fn tidy(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.remove("managedFields");
                map.remove("selfLink");
                // Anything may have been written in between, so a list's version is only its own.
                if map.contains_key("items")
                    && let Some(version) = map.get_mut("metadata").and_then(|m| m.get_mut("resourceVersion"))
                {
                    *version = Value::Null;
                }
                if let Some(Value::String(uid)) = map.get("uid")
                    && !self.uids.contains(uid)
                {
                    self.uids.push(uid.clone());
                }
                for (key, child) in map.iter_mut() {
                    match (key.as_str(), &mut *child) {
                        ("resourceVersion", Value::String(version)) => *version = self.version(version),
                        ("creationTimestamp" | "deletionTimestamp" | "timeAdded", Value::String(time)) => {
                            *time = "<time>".into();
                        }
                        ("continue", Value::String(token)) => *token = "<continue>".into(),
                        _ => self.tidy(child),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.tidy(item)),
            Value::String(text) => *text = self.text(text),
            _ => {}
        }
    }
}

/// Words that newer versions of Kubernetes changed, as they are now.
fn newest_wording(text: &str) -> String {
    match text {
        "deployments/scale" => "deployments".to_owned(),
        _ => text
            .replace("deployments/scale.apps ", "deployments.apps ")
            .replace("Invalid value: 0x0:", "Invalid value: 0:"),
    }
}

/// `${step:/pointer}` stands for what an earlier answer held there.
fn fill(text: &str, answers: &HashMap<&str, Value>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (reference, after) = after.split_once('}').unwrap();
        let (step, pointer) = reference.split_once(':').unwrap();
        let value = answers[step].pointer(pointer).and_then(Value::as_str);
        out.push_str(before);
        out.push_str(value.unwrap_or_else(|| panic!("nothing at {reference}: {}", answers[step])));
        rest = after;
    }
    out + rest
}

/// Plays the steps one after the other.
pub(crate) async fn play(client: &Client, steps: &[Step]) -> String {
    let mut names = Names::default();
    let mut answers: HashMap<&str, Value> = HashMap::new();
    let mut out = Vec::new();
    for step in steps {
        let mut request = http::Request::builder()
            .method(step.method)
            .uri(fill(&step.path, &answers));
        let explicit = step.headers.iter().any(|(name, _)| *name == "Content-Type");
        if !step.body.is_empty() && !explicit {
            request = request.header("Content-Type", "application/json");
        }
        for (name, value) in &step.headers {
            request = request.header(*name, *value);
        }
        let body = fill(&step.body, &answers).into_bytes();
        let response = client.send(request.body(body.into()).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let mut lines = format!("# {}\n{} {}\n{code}", step.name, step.method, step.path);
        if step.path.contains("watch=true") && code == 200 {
            for line in text.lines() {
                let mut event: Value = serde_json::from_str(line).unwrap();
                names.tidy(&mut event);
                write!(
                    lines,
                    "\n{} {}",
                    event["type"].as_str().unwrap(),
                    cut(&event["object"], step.show)
                )
                .unwrap();
            }
        } else {
            match serde_json::from_str::<Value>(&text) {
                Ok(mut value) => {
                    answers.insert(step.name, value.clone());
                    names.tidy(&mut value);
                    write!(lines, "\n{}", shown(&value, step)).unwrap();
                }
                Err(_) => write!(lines, " {}", text.trim()).unwrap(),
            }
        }
        out.push(lines);
    }
    out.join("\n\n") + "\n"
}

fn shown(value: &Value, step: &Step) -> String {
    if value["kind"] == "Status" {
        if step.terse {
            return cut(value, &["/reason"]);
        }
        return serde_json::to_string_pretty(value).unwrap();
    }
    cut(value, step.show)
}

/// The parts of a value at these pointers, on one line.
fn cut(value: &Value, pointers: &[&str]) -> String {
    let parts: Map<String, Value> = pointers
        .iter()
        .map(|pointer| {
            (
                (*pointer).to_owned(),
                value.pointer(pointer).cloned().unwrap_or_default(),
            )
        })
        .collect();
    Value::Object(parts).to_string()
}

/// Compares step by step, so that a failure names the step.
pub(crate) fn assert_same(what: &str, transcript: &str) {
    let steps = |text: &str| text.split("\n\n").map(str::to_owned).collect::<Vec<_>>();
    let (expected, found) = (steps(RECORDED), steps(transcript));
    let differing: Vec<String> = expected
        .iter()
        .zip(&found)
        .filter(|(expected, found)| expected != found)
        .map(|(expected, found)| format!("--- expected\n{expected}\n--- {what}\n{found}\n"))
        .collect();
    assert!(
        differing.is_empty(),
        "{} steps differ:\n{}",
        differing.len(),
        differing.join("\n")
    );
    assert_eq!(expected.len(), found.len());
}
