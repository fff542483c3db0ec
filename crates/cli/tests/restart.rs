//! The real server after SIGKILL: how long until the first token, with what the one before has left behind.

mod common;

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::{
    indrik,
    served::{LONG, has_device, tiny},
};

/// Ends what it holds, however the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL; nothing where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// From the start of a server to the first token that a client sees who asks again and again.
fn first_token(command: &mut Command, address: &str) -> (Running, Duration) {
    let started = Instant::now();
    let mut running = Running(command.spawn().unwrap());
    loop {
        if asked(address).is_some() {
            return (running, started.elapsed());
        }
        assert!(started.elapsed() < LONG, "it does not answer");
        assert!(running.0.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The first token of a stream; nothing where there is none.
fn asked(address: &str) -> Option<String> {
    let body =
        r#"{"model": "it", "prompt": "The cat sat", "max_tokens": 4, "temperature": 0, "stream": true}"#;
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(stream, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n").ok()?;
    write!(stream, "Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    let mut lines = BufReader::new(stream).lines();
    lines.next()?.ok()?.contains(" 200 ").then_some(())?;
    lines.map_while(Result::ok).find(|line| line.starts_with("data: {"))
}

#[test]
fn it_is_back_after_sigkill() {
    if !has_device() {
        return;
    }
    let mut models = vec![("a tiny model", tiny())];
    match std::env::var("INDRIK_TEST_GGUF") {
        Ok(file) if !file.is_empty() => models.push(("Gemma 3 270M", file)),
        _ => testkit::missing("Gemma 3 270M: INDRIK_TEST_GGUF names its file"),
    }
    for (name, model) in models {
        let cache = tempfile::tempdir().unwrap();
        // A port that was free a moment ago: the server must be found at the same one again.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut command =
            indrik(&["serve", "-m", &model, "--name", "it", "--context", "512", "--port", &port.to_string()]);
        // Mesa keeps what it compiled in a folder of its own: that of the user would make the first start a warm one.
        let (own, mesa) = (cache.path().join("indrik"), cache.path().join("mesa"));
        command.env("INDRIK_CACHE_DIR", &own).env("MESA_SHADER_CACHE_DIR", &mesa);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let (running, cold) = first_token(&mut command, &address);
        // What was compiled and tuned is on disk by now, or what follows is as slow as this.
        let kept = std::fs::read_dir(own.join("pipelines")).map_or(0, Iterator::count);
        assert!(kept > 0, "nothing is kept for the next start");
        let killed = Instant::now();
        drop(running);
        let (running, _) = first_token(&mut command, &address);
        let warm = killed.elapsed();
        drop(running);
        println!(
            "{name}: first token {cold:.2?} after the first start, {warm:.2?} after SIGKILL and a restart"
        );
        // Killed in the middle of its start: what is half-written harms nobody.
        let running = Running(command.spawn().unwrap());
        std::thread::sleep(warm / 2);
        drop(running);
        first_token(&mut command, &address);
    }
}
