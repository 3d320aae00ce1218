//! Debian's headless Chromium, driven by its DevTools protocol.

#![allow(clippy::indexing_slicing, reason = "JSON whose absent fields are null")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::process::{ChildProcess, Command};
use crate::scratch::Scratch;
use crate::tools;
use crate::wait::BOUND;

/// A page asks this often if a condition holds.
const LOOK: Duration = Duration::from_millis(20);

/// A browser with a profile of its own.
pub struct Browser {
    process: ChildProcess,
    /// Where it takes commands.
    url: String,
}

/// One page in a browser.
pub struct Tab {
    socket: WebSocketStream<TcpStream>,
    session: Option<String>,
    last_id: u64,
    requests: Vec<String>,
    complaints: Vec<String>,
}

impl Browser {
    /// Starts it. None where it is not installed: the test is skipped, and says so.
    pub async fn start(scratch: &Arc<Scratch>) -> anyhow::Result<Option<Self>> {
        let Ok(program) = tools::path(tools::CHROMIUM) else {
            eprintln!("SKIPPED: Chromium is not here; install Debian's package chromium");
            return Ok(None);
        };
        let process = Command::new("chromium", program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .args([
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", scratch.join("chromium").display()))
            .arg("about:blank")
            // It leaves a folder there when it is killed.
            .env("TMPDIR", scratch.path())
            .spawn(scratch)?;
        let url = process
            .wait_for_line("address for commands", BOUND, |line| {
                let (_, url) = line.text.split_once("DevTools listening on ")?;
                Some(url.trim().to_owned())
            })
            .await?;
        Ok(Some(Self { process, url }))
    }

    /// Opens an address in a page of this width in pixels.
    pub async fn open(&self, address: &str, width: u32) -> anyhow::Result<Tab> {
        let host = self
            .url
            .strip_prefix("ws://")
            .and_then(|rest| rest.split('/').next());
        let stream = TcpStream::connect(host.context("no address")?).await?;
        let (socket, _) = tokio_tungstenite::client_async(&self.url, stream).await?;
        let mut tab = Tab {
            socket,
            session: None,
            last_id: 0,
            requests: Vec::new(),
            complaints: Vec::new(),
        };
        let target = tab
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = tab.call("Target.attachToTarget", attach).await?;
        tab.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Network.enable", "Log.enable", "Runtime.enable", "Page.enable"] {
            tab.call(domain, json!({})).await?;
        }
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        tab.call("Emulation.setDeviceMetricsOverride", size).await?;
        tab.call("Page.navigate", json!({"url": address})).await?;
        Ok(tab)
    }

    /// Ends it.
    pub async fn close(self) -> anyhow::Result<()> {
        self.process.kill_9().await.map(drop)
    }
}

impl Tab {
    /// The value of a JavaScript expression, once it is neither false nor empty nor an error.
    pub async fn until(&mut self, expression: &str) -> anyhow::Result<Value> {
        let look = LOOK.as_millis();
        let promise = format!(
            "new Promise((done) => {{ const look = () => {{ let value; try {{ value = ({expression}); }} catch {{}} \
             value ? done(value) : setTimeout(look, {look}); }}; look(); }})"
        );
        let mut failure = None;
        let looks = async {
            loop {
                match self.evaluate(&promise).await {
                    Ok(value) => return value,
                    // The tab has left the page meanwhile: look at the next one.
                    Err(error) => failure = Some(error),
                }
                sleep(LOOK).await;
            }
        };
        if let Ok(value) = timeout(BOUND, looks).await {
            return Ok(value);
        }
        let why = failure.map(|error| format!(": {error:#}")).unwrap_or_default();
        bail!("waited {BOUND:?} in vain: {expression}{why}")
    }

    /// The value of a JavaScript expression; that of a promise when it is fulfilled.
    pub async fn evaluate(&mut self, expression: &str) -> anyhow::Result<Value> {
        let evaluate = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", evaluate).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("{expression}: {thrown}");
        }
        Ok(answer["result"].get("value").cloned().unwrap_or_default())
    }

    /// Presses keys, by their names in events of the keyboard.
    pub async fn press(&mut self, keys: &[&str]) -> anyhow::Result<()> {
        for key in keys {
            // Enter activates a button by the text that it enters.
            let text = if *key == "Enter" { "\r" } else { "" };
            let down = json!({"type": "keyDown", "key": key, "text": text});
            self.call("Input.dispatchKeyEvent", down).await?;
            self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": key}))
                .await?;
        }
        Ok(())
    }

    /// The addresses that the page has requested.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Errors of its scripts, and what the browser refused it.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    async fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.last_id += 1;
        let mut command = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(command.to_string())).await?;
        loop {
            let message = self.socket.next().await.context("the browser has gone")??;
            let Message::Text(text) = message else {
                continue;
            };
            let mut message: Value = serde_json::from_str(&text)?;
            if message["id"] == self.last_id {
                if let Some(error) = message.get("error") {
                    bail!("{method}: {error}");
                }
                return Ok(message["result"].take());
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => self.complaints.push(params.to_string()),
            _ => {}
        }
    }
}
