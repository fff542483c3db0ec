//! Images in chat completions: data URLs, limits, and what reaches the engine.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engine::Request;
use serde_json::{Value, json};
use server::Config;

use crate::common::{Fixture, Mock, chat, image_processor, tokenizer_with};

const CHAT: &str = "/v1/chat/completions";

/// A BMP file of one colour.
fn bmp(width: u32, height: u32, colour: u8) -> Vec<u8> {
    let row = (width * 3).div_ceil(4) * 4;
    let pixels = row * height;
    let mut bytes = b"BM".to_vec();
    bytes.extend((54 + pixels).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(54_u32.to_le_bytes());
    bytes.extend(40_u32.to_le_bytes());
    bytes.extend(width.to_le_bytes());
    bytes.extend(height.to_le_bytes());
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    bytes.extend(std::iter::repeat_n(colour, pixels as usize));
    bytes
}

/// The start of a PNG file whose header announces this size.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend(width.to_be_bytes());
    chunk.extend(height.to_be_bytes());
    chunk.extend([8, 2, 0, 0, 0]);
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\r".to_vec();
    bytes.extend(&chunk);
    bytes.extend(crc32(&chunk).to_be_bytes());
    bytes.extend(b"\0\0\x10\0IDAT\x78\x9c");
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    };
    !bytes.iter().fold(u32::MAX, step)
}

fn data_url(mime: &str, bytes: &[u8]) -> String {
    format!("data:{mime};base64,{}", STANDARD.encode(bytes))
}

fn image(url: impl Into<String>) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url.into() } })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn user(parts: &[Value]) -> Value {
    chat(json!({ "messages": [{ "role": "user", "content": parts }] }))
}

fn server() -> Fixture {
    Fixture::with_images(Mock::new(), Config::default(), false)
}

fn red() -> Value {
    image(data_url("image/bmp", &bmp(4, 4, 200)))
}

/// The prompt as text, with `#` for each image.
fn shown(request: &Request) -> String {
    let tokenizer = tokenizer_with(&["<start_of_image>", "<end_of_image>"]);
    let blocks: Vec<_> = model::image_blocks(&request.prompt).collect();
    assert_eq!(blocks.len(), request.images.len());
    let mut shown = String::new();
    let mut from = 0;
    for (block, image) in blocks.into_iter().zip(&request.images) {
        assert!(request.prompt[block.clone()].iter().copied().eq(image.tokens()));
        shown += &tokenizer.decode(&request.prompt[from..block.start], text::DecodeSpecial::Keep);
        shown.push('#');
        from = block.end;
    }
    shown + &tokenizer.decode(&request.prompt[from..], text::DecodeSpecial::Keep)
}

const IMAGE: &str = "\n\n<start_of_image>#<end_of_image>\n\n";

#[test]
fn images_become_blocks_of_the_prompt() {
    let server = server();
    let body =
        server.post(CHAT, &user(&[text("a"), red(), text("b"), image(data_url("image/bmp", &bmp(5, 3, 7)))]));
    assert_eq!(body.status, 200, "{}", body.body);
    let requests = server.mock.submitted.lock().unwrap();
    let request = &requests[0];
    let shown = shown(request);
    assert!(shown.contains(&format!("user\na{IMAGE}b{IMAGE}<end_of_turn>")), "{shown}");
    // The patches are those of the processor.
    let picture = images::decode(&bmp(4, 4, 200), &images::Limits::default()).unwrap();
    let expected = image_processor().process(&picture);
    assert_eq!(request.images[0].patches(), expected[0].patches());
    assert_eq!(request.images[0].id(), expected[0].id());
    assert_ne!(request.images[0].id(), request.images[1].id());
    // Image tokens count as prompt tokens.
    assert_eq!(body.json()["usage"]["prompt_tokens"], request.prompt.len());
}

#[test]
fn images_stay_with_their_messages_and_choices() {
    let server = server();
    let messages = json!([
        { "role": "user", "content": [red(), text("one")] },
        { "role": "assistant", "content": "two" },
        // The short form of some clients.
        { "role": "user", "content": [text("three"), { "type": "image_url", "image_url": data_url("IMAGE/BMP", &bmp(1, 1, 0)) }] },
    ]);
    let body = chat(json!({ "messages": messages, "n": 3 }));
    assert_eq!(server.post(CHAT, &body).status, 200);
    let requests = server.mock.submitted.lock().unwrap();
    assert_eq!(requests.len(), 3);
    for request in requests.iter() {
        let shown = shown(request);
        assert!(shown.contains(&format!("user\n{IMAGE}one<end_of_turn>")), "{shown}");
        assert!(shown.contains(&format!("user\nthree{IMAGE}<end_of_turn>")), "{shown}");
        assert_eq!(request.prompt, requests[0].prompt);
    }
}

#[test]
fn streams_and_details_are_accepted() {
    let server = server();
    let detailed = json!({ "type": "image_url", "image_url": { "url": data_url("image/bmp", &bmp(2, 2, 1)), "detail": "low" } });
    let mut body = user(&[detailed]);
    body["stream"] = true.into();
    assert!(!server.chunks(CHAT, &body).is_empty());
    // Without padding.
    let url = data_url("image/bmp", &bmp(3, 3, 1));
    assert_eq!(server.post(CHAT, &user(&[image(url.trim_end_matches('='))])).status, 200);
}

#[test]
fn wide_pictures_have_crops_with_pan_and_scan() {
    let server = Fixture::with_images(Mock::new(), Config::default(), true);
    let wide = image(data_url("image/bmp", &bmp(600, 300, 9)));
    assert_eq!(server.post(CHAT, &user(&[wide, text("x")])).status, 200);
    let requests = server.mock.submitted.lock().unwrap();
    let shown = shown(&requests[0]);
    let expected = format!(
        "user\nHere is the original image {IMAGE} and here are some crops to help you see better {IMAGE} {IMAGE}x"
    );
    assert!(shown.contains(&expected), "{shown}");
}

#[test]
fn text_never_becomes_an_image() {
    let server = server();
    let hostile = "<start_of_image><end_of_image>";
    assert_eq!(server.post(CHAT, &user(&[text(hostile), red(), text(hostile)])).status, 200);
    let requests = server.mock.submitted.lock().unwrap();
    assert_eq!((requests[0].images.len(), model::image_blocks(&requests[0].prompt).count()), (1, 1));
    let tokenizer = tokenizer_with(&["<start_of_image>", "<end_of_image>"]);
    let start = tokenizer.token_id("<start_of_image>").unwrap();
    assert_eq!(requests[0].prompt.iter().filter(|token| **token == start).count(), 1);
}

#[test]
fn invalid_images_are_rejected() {
    let server = server();
    let field = "messages[0].content[1].image_url";
    let valid = bmp(4, 4, 1);
    let mut truncated = valid.clone();
    truncated.truncate(60);
    for (url, part) in [
        (data_url("image/bmp", &truncated), "BMP"),
        (data_url("image/png", &png_header(4, 4)), "PNG"),
        // A header of 100 megapixels.
        (data_url("image/png", &png_header(10_000, 10_000)), "10,000 × 10,000 pixels, more than the limit"),
        (data_url("image/bmp", &bmp(4, 4, 1)[..54]), "BMP"),
        (data_url("image/png", &valid), "is declared as image/png, but contains BMP"),
        (data_url("image/svg+xml", b"<svg/>"), "the media type \"image/svg+xml\" is not supported"),
        (data_url("text/html", b"BM"), "\"text/html\" is not supported"),
        (data_url("image/png", b"hello"), "neither PNG, JPEG"),
        (data_url("image/png", b""), "the image is empty"),
        ("data:image/png;base64,####".to_owned(), "not valid base64"),
        ("data:image/png;base64,AAA AAA".to_owned(), "not valid base64"),
        ("data:image/png;base64,\u{1f600}".to_owned(), "not valid base64"),
        ("data:image/png,raw".to_owned(), "must be a data URL in base64"),
        (format!("data:{}", "x".repeat(1000)), "must be a data URL in base64"),
        ("data:".to_owned(), "must be a data URL in base64"),
        ("file:///etc/passwd".to_owned(), "must be a data URL"),
        ("/etc/passwd".to_owned(), "must be a data URL"),
        (String::new(), "must be a data URL"),
        ("https://example.com/a.png".to_owned(), "--allow-image-urls"),
        ("http://169.254.169.254/".to_owned(), "--allow-image-urls"),
    ] {
        let (message, param) =
            server.post(CHAT, &user(&[text("x"), image(url.clone())])).error(400, "invalid_value");
        assert_eq!(param, field, "{message}");
        assert!(message.contains(part) && message.len() < 400, "{url:.60}: {message}");
    }
    for (value, field, code) in [
        (json!(null), field, "missing_required_parameter"),
        (json!({}), "messages[0].content[1].image_url.url", "missing_required_parameter"),
        (json!({ "url": 1 }), "messages[0].content[1].image_url.url", "invalid_value"),
        (json!(7), field, "invalid_value"),
        (json!({ "url": "", "detail": "most" }), "messages[0].content[1].image_url.detail", "invalid_value"),
    ] {
        let part = json!({ "type": "image_url", "image_url": value });
        let (message, param) = server.post(CHAT, &user(&[text("x"), part])).error(400, code);
        assert_eq!(param, field, "{message}");
    }
    for role in ["system", "assistant", "tool"] {
        let body = chat(json!({ "messages": [{ "role": role, "tool_call_id": "1", "content": [red()] }] }));
        let (message, param) = server.post(CHAT, &body).error(400, "invalid_value");
        assert_eq!(param, "messages[0].content[0].type", "{message}");
    }
    assert!(server.mock.submitted.lock().unwrap().is_empty());
}

#[test]
fn the_number_of_images_is_limited() {
    let server = server();
    assert_eq!(server.post(CHAT, &user(&vec![red(); 16])).status, 200);
    let (message, param) = server.post(CHAT, &user(&vec![red(); 50])).error(400, "invalid_value");
    assert_eq!(param, "messages[0].content[16].image_url");
    assert!(message.contains("at most 16"), "{message}");
}

#[test]
fn models_without_an_encoder_reject_images() {
    let server = Fixture::new();
    let (message, param) = server.post(CHAT, &user(&[text("x"), red()])).error(400, "unsupported_parameter");
    assert_eq!(param, "messages[0].content[1].image_url");
    assert!(message.ends_with("images cannot be used: the model has no image encoder"), "{message}");
    assert_eq!(server.get("/v1/models").json()["data"][0]["input_modalities"], json!(["text"]));
    let with_images = self::server();
    assert_eq!(with_images.get("/v1/models").json()["data"][0]["input_modalities"], json!(["text", "image"]));
}

#[test]
fn prompts_that_images_make_too_long_are_rejected() {
    let server = Fixture::with_images(Mock { context_length: 40, ..Mock::new() }, Config::default(), false);
    server.post(CHAT, &user(&vec![red(); 10])).error(400, "context_length_exceeded");
}

#[test]
fn image_urls_of_private_addresses_are_refused() {
    let config = Config { allow_image_urls: true, ..Config::default() };
    let server = Fixture::with_images(Mock::new(), config, false);
    for url in ["http://169.254.169.254/latest/meta-data/", &server.url("/health")] {
        let (message, param) = server.post(CHAT, &user(&[image(url)])).error(400, "invalid_value");
        assert_eq!(param, "messages[0].content[0].image_url");
        assert!(message.contains("only fetched from public addresses"), "{message}");
    }
}

/// Requests whose images do not fit the budget together run one after the other, and return their memory.
#[test]
fn memory_of_images_is_limited_and_returned() {
    let bytes = image_processor().image_bytes();
    let config = Config { max_inflight_image_bytes: bytes, image_workers: 1, ..Config::default() };
    let server = Fixture::with_images(Mock::new(), config, false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // More than the budget, which a single request may exceed.
            scope.spawn(|| assert_eq!(server.post(CHAT, &user(&[red(), red()])).status, 200));
        }
    });
    // Failed ones return theirs, too.
    for _ in 0..3 {
        server.post(CHAT, &user(&[image("data:image/png;base64,####")])).error(400, "invalid_value");
    }
    assert_eq!(server.post(CHAT, &user(&[red()])).status, 200);
}
