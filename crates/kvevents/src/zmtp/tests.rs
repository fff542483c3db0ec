use proptest::{collection::vec, prelude::*};

use super::*;

fn decode(bytes: &[u8]) -> Result<Vec<Received>, Violation> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    let mut all = vec![];
    while let Some(received) = decoder.next()? {
        all.push(received);
    }
    Ok(all)
}

#[test]
fn greetings_are_those_of_the_specification() {
    let own = greeting();
    assert_eq!(own[..16], *b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01NULL");
    assert_eq!(own[16..], [0; 48]);
    assert_eq!(check_greeting(&own), Ok(()));
    // libzmq sends its length in the padding, and the first ten bytes alone.
    assert_eq!(check_greeting(b"\xff\0\0\0\0\0\0\0\x01\x7f"), Ok(()));
    let with = |index: usize, byte: u8| {
        let mut greeting = greeting();
        greeting[index] = byte;
        check_greeting(&greeting)
    };
    assert_eq!(with(0, b'G'), Err(Violation::NotZmtp));
    assert_eq!(with(9, 0), Err(Violation::NotZmtp));
    assert_eq!(with(10, 2), Err(Violation::OldVersion { major: 2 }));
    assert_eq!(with(10, 4), Ok(()));
    assert_eq!(with(11, 0), Ok(()));
    assert_eq!(with(12, b'P'), Err(Violation::Mechanism));
    assert_eq!(with(16, b'X'), Err(Violation::Mechanism));
    assert_eq!(check_greeting(b"GET / HTTP/1.1\r\n"), Err(Violation::NotZmtp));
}

#[test]
fn frames_are_long_from_256_bytes_on() {
    assert_eq!(
        message(&[b"ab", b"", &[7; 256]])[..13],
        [&b"\x01\x02ab\x01\0\x02"[..], &256_u64.to_be_bytes()[..6]].concat()
    );
    for length in [0, 255, 256, MAX_FRAME] {
        let frames = [vec![1; length], vec![], vec![2; length]];
        let bytes = message(&frames.each_ref().map(|frame| &frame[..]));
        assert_eq!(decode(&bytes), Ok(vec![Received::Message(frames.to_vec())]));
    }
    // A short frame may be written in the long form.
    assert_eq!(decode(b"\x02\0\0\0\0\0\0\0\x01x"), Ok(vec![Received::Message(vec![b"x".to_vec()])]));
}

#[test]
fn commands_have_a_meaning_or_none() {
    let ready = |own| decode(&ready(own)).unwrap().remove(0);
    let socket_type = |name: &[u8]| Received::Command(Command::Ready { socket_type: name.to_vec() });
    assert_eq!(ready(SocketType::Pub), socket_type(b"PUB"));
    assert_eq!(ready(SocketType::Router), socket_type(b"ROUTER"));
    // Names of properties have any case, and others are ignored.
    let bytes = command_frame(b"\x05READY\x08Identity\0\0\0\x02id\x0bsocket-TYPE\0\0\0\x03SUB");
    assert_eq!(decode(&bytes), Ok(vec![socket_type(b"SUB")]));
    let bytes = [
        command_frame(b"\x09SUBSCRIBEkv@"),
        command_frame(b"\x06CANCEL"),
        command_frame(b"\x04PING\0\x0ahi"),
        command_frame(b"\x01?"),
    ];
    let expected = [
        Command::Subscribe(b"kv@".to_vec()),
        Command::Cancel(vec![]),
        Command::Ping(b"hi".to_vec()),
        Command::Other,
    ];
    assert_eq!(decode(&bytes.concat()), Ok(expected.map(Received::Command).to_vec()));
    assert_eq!(pong(b"hi"), b"\x04\x07\x04PONGhi");
    assert_eq!(error("no"), b"\x04\x09\x05ERROR\x02no");
    for malformed in [
        &b""[..],
        b"\x06READY",
        b"\x05READY\x0bSocket-Type",
        b"\x05READY\x0bSocket-Type\0\0\0\x04SUB",
        b"\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB",
        b"\x04PING\0",
        b"\x04PING\0\0seventeen bytes...",
    ] {
        assert_eq!(decode(&command_frame(malformed)), Err(Violation::Malformed), "{malformed:?}");
    }
}

#[test]
fn a_handshake_is_one_ready_of_a_fitting_socket() {
    let ready = |name: &str| Received::Command(Command::Ready { socket_type: name.into() });
    for (own, fitting) in
        [(SocketType::Pub, &["SUB", "XSUB"][..]), (SocketType::Router, &["DEALER", "REQ", "ROUTER"])]
    {
        for name in
            ["SUB", "XSUB", "PUB", "XPUB", "PUSH", "PULL", "REQ", "REP", "DEALER", "ROUTER", "PAIR", ""]
        {
            let expected = if fitting.contains(&name) { Ok(()) } else { Err(Violation::SocketType) };
            assert_eq!(check_ready(&ready(name), own), expected, "{own:?} {name}");
        }
        assert_eq!(check_ready(&Received::Message(vec![]), own), Err(Violation::Handshake));
        assert_eq!(check_ready(&Received::Command(Command::Other), own), Err(Violation::Handshake));
    }
}

#[test]
fn subscriptions_of_version_3_0_are_messages() {
    let change = |frames: &[&[u8]]| Change::of_message(frames.iter().map(|frame| frame.to_vec()).collect());
    assert_eq!(change(&[b"\x01kv"]), Some(Change::Subscribe(b"kv".to_vec())));
    assert_eq!(change(&[b"\x01"]), Some(Change::Subscribe(vec![])));
    assert_eq!(change(&[b"\0kv"]), Some(Change::Cancel(b"kv".to_vec())));
    for ignored in [&[b"".as_slice()][..], &[b"\x02kv"], &[b"\x01kv", b"x"], &[]] {
        assert_eq!(change(ignored), None);
    }
}

#[test]
fn lengths_and_flags_of_an_attacker_are_refused() {
    // Before the frame has arrived, and without memory for it.
    let long = |length: u64| [&[LONG][..], &length.to_be_bytes()].concat();
    assert_eq!(decode(&long(u64::MAX)), Err(Violation::FrameTooLong { length: u64::MAX }));
    assert_eq!(decode(&long(4097)), Err(Violation::FrameTooLong { length: 4097 }));
    assert_eq!(decode(&long(4096)), Ok(vec![]));
    for flags in [0x08, 0x80, 0xff, MORE | COMMAND, MORE | COMMAND | LONG] {
        assert_eq!(decode(&[flags]), Err(Violation::Flags { flags }));
    }
    assert_eq!(decode(&[MORE, 0].repeat(MAX_FRAMES)), Ok(vec![]));
    assert_eq!(decode(&[MORE, 0].repeat(MAX_FRAMES + 1)), Err(Violation::TooManyFrames));
    let between = [&[MORE, 0][..], &command_frame(b"\x04PING\0\0")].concat();
    assert_eq!(decode(&between), Err(Violation::Malformed));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_understood_in_any_pieces(
        bytes in vec(prop_oneof![4 => 0..8_u8, 1 => any::<u8>()], 0..300),
        cuts in vec(0..300_usize, 0..20),
    ) {
        let whole = decode(&bytes);
        let mut decoder = Decoder::default();
        let mut pieces = vec![];
        let mut violation = None;
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        'all: for pair in cuts.windows(2) {
            decoder.push(&bytes[pair[0]..pair[1]]);
            loop {
                match decoder.next() {
                    Ok(Some(received)) => pieces.push(received),
                    Ok(None) => break,
                    Err(error) => {
                        violation = Some(error);
                        break 'all;
                    }
                }
            }
        }
        match whole {
            Ok(all) => assert_eq!((pieces, violation), (all, None)),
            Err(error) => assert_eq!(violation, Some(error)),
        }
    }

    #[test]
    fn what_is_written_is_read(frames in vec(vec(any::<u8>(), 0..600), 1..8)) {
        let refs: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        assert_eq!(decode(&message(&refs)), Ok(vec![Received::Message(frames)]));
    }
}
