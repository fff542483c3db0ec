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
        ("root ::= \"a\n", "line 1: a text does not end"),
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
    ] {
        let error = compiler().grammar(grammar).unwrap_err().to_string();
        assert!(error.contains(part), "{grammar:?}: {error}");
    }
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
