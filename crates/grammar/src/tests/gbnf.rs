use super::{accepted, accepts, compiler};

/// JSON as llama.cpp writes it.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn a_recursive_grammar_accepts_what_it_describes() {
    let grammar = compiler().grammar(JSON).unwrap();
    for valid in ["{}", "{\"a\": [1, -2.5e3, \"x\\n\\u00aF\"], \"b\": {\"c\": null}}", "{ \"é\":true }\n\t"]
    {
        assert!(accepts(&grammar, valid), "{valid:?}: {:?}", accepted(&grammar, valid));
    }
    for (invalid, bytes) in [("[1]", 0), ("{\"a\" 1}", 5), ("{\"a\":01}", 6), ("{\"a\":\"\u{7f}\"}", 6)] {
        assert_eq!(accepted(&grammar, invalid).0, bytes, "{invalid:?}");
    }
}

#[test]
fn characters_are_matched_one_by_one() {
    let grammar =
        compiler().grammar("root ::= [a-z]* \"b\" tail\ntail ::= . [^\\]\\-]? (\"c\" | \"d\"){2,3}").unwrap();
    for valid in ["bxcc", "abbbb-cdc", "zzb\nxcd", "b\u{20ac}cc"] {
        assert!(accepts(&grammar, valid), "{valid:?}: {:?}", accepted(&grammar, valid));
    }
    assert_eq!(accepted(&grammar, "bx]").0, 2);
    assert_eq!(accepted(&grammar, "a1").0, 1);
}

#[test]
fn errors_name_the_line_and_the_rule() {
    for (grammar, part) in [
        ("x ::= \"a\"", "no rule 'root'"),
        ("root ::= other", "uses 'other', which is not defined"),
        ("root ::= \"a\n", "line 2: a text does not end"),
        ("root ::= \"a\"\nroot ::= \"b\"", "defined twice"),
        ("root ::= (\"a\"", "expected )"),
        ("root ::= [a", "does not end"),
        ("root ::= []", "is empty"),
        ("root ::= \"a\"{3,2}", "smaller than the first"),
        ("root ::= \"\\q\"", "unknown escape"),
        ("root ::= \"\\ud800\"", "not a character"),
        ("root ::= <[1000]>", "tokens in grammars are not supported"),
        ("root ::= \"a\" = 3", "expected the end of the rule"),
        (&format!("root ::= {}", "(".repeat(200)), "nested too deeply"),
        (&format!("root ::= \"a\"{}", "?".repeat(200_000)), "too many repetition signs"),
        ("root ::= \"\\u€€\"", "not a character"),
        ("root ::= \"\\x+A\"", "not a character"),
        ("root ::= [z-a]", "ends before it starts"),
        ("root ::= \"a\"{1,99999999999}", "too large"),
    ] {
        let error = compiler().grammar(grammar).unwrap_err().to_string();
        assert!(error.contains(part), "{grammar:?}: {error}");
    }
}

#[test]
fn long_chains_of_rules_are_bounded() {
    let chain = |length: usize| {
        let rule = |n: usize| format!("r{n} ::= r{}\n", n + 1);
        format!("root ::= r0\n{}r{length} ::= \"a\"", (0..length).map(rule).collect::<String>())
    };
    assert!(accepts(&compiler().grammar(&chain(1900)).unwrap(), "a"));
    let error = compiler().grammar(&chain(10_000)).unwrap_err().to_string();
    assert!(error.contains("more than 2000 rules"), "{error}");
}

#[test]
fn classes_have_ranges_and_signs() {
    let grammar = compiler().grammar("root ::= [+--/] [a-c-] [-x]").unwrap();
    for valid in ["+a-", ",-x", "/cx", "-b-"] {
        assert!(accepts(&grammar, valid), "{valid:?}: {:?}", accepted(&grammar, valid));
    }
    assert_eq!(accepted(&grammar, ".").0, 0);
    // Lark may contain the sign that defines a rule of GBNF.
    assert!(accepts(&compiler().grammar("start: \"a ::= b\" // x ::= y").unwrap(), "a ::= b"));
}

#[test]
fn a_choice_is_one_of_the_texts() {
    let choices = ["yes", "no (really)", "a|b", "é\"\n"].map(str::to_owned);
    let grammar = compiler().choice(&choices).unwrap();
    for choice in &choices {
        assert!(accepts(&grammar, choice), "{choice:?}");
    }
    assert!(!accepted(&grammar, "a").1);
    assert_eq!(accepted(&grammar, "nope").0, 2);
}
