//! The server after SIGKILL: time to the first token with the caches of the previous run.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{
    indrik,
    served::{TIMEOUT, has_device, tiny},
};

/// A child process, killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // SIGKILL; errors mean that it has exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Time from the start of a server to the first token that a retrying client receives.
fn first_token(command: &mut Command, address: &str) -> (KillOnDrop, Duration) {
    let started = Instant::now();
    let mut running = KillOnDrop(command.spawn().unwrap());
    loop {
        if try_stream(address).is_some() {
            return (running, started.elapsed());
        }
        assert!(started.elapsed() < TIMEOUT, "the server does not respond");
        assert!(running.0.try_wait().unwrap().is_none(), "the server has exited");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// First event of a stream; `None` if the server is not ready.
fn try_stream(address: &str) -> Option<String> {
    let body =
        r#"{"model": "it", "prompt": "The cat sat", "max_tokens": 4, "temperature": 0, "stream": true}"#;
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        .ok()?;
    write!(stream, "Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    let mut lines = BufReader::new(stream).lines();
    lines.next()?.ok()?.contains(" 200 ").then_some(())?;
    lines.map_while(Result::ok).find(|line| line.starts_with("data: {"))
}

#[test]
fn a_killed_server_restarts_with_its_caches() {
    if !has_device() {
        return;
    }
    let mut models = vec![("tiny model", tiny())];
    // A minute for the real model, most of it in Mesa's compiler: only with INDRIK_TEST_ALL=1.
    if testkit::exhaustive() {
        match std::env::var("INDRIK_TEST_GGUF") {
            Ok(file) if !file.is_empty() => models.push(("Gemma 3 270M", file)),
            _ => testkit::missing("Gemma 3 270M: INDRIK_TEST_GGUF names its file"),
        }
    }
    for (name, model) in models {
        let cache = tempfile::tempdir().unwrap();
        // A port that was free a moment ago: the restarted server must use the same one.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut command =
            indrik(&["serve", "-m", &model, "--name", "it", "--context", "512", "--port", &port.to_string()]);
        // Mesa's shader cache too: the user's would make the first start a warm one.
        let (own, mesa) = (cache.path().join("indrik"), cache.path().join("mesa"));
        command.env("INDRIK_CACHE_DIR", &own).env("MESA_SHADER_CACHE_DIR", &mesa);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (running, cold) = first_token(&mut command, &address);
        // Compiled pipelines and tuning results must be on disk by now, or the restart is as slow.
        let cached = std::fs::read_dir(own.join("pipelines")).map_or(0, Iterator::count);
        assert!(cached > 0, "no pipelines are cached");
        let killed = Instant::now();
        drop(running);
        let (running, _) = first_token(&mut command, &address);
        let warm = killed.elapsed();
        drop(running);
        println!("{name}: first token {cold:.2?} after a cold start, {warm:.2?} after SIGKILL and restart");
        // Killed during startup: a partly written cache must not break the next start.
        let running = KillOnDrop(command.spawn().unwrap());
        std::thread::sleep(warm / 2);
        drop(running);
        first_token(&mut command, &address);
    }
}
