//! Images in prompts: the text around each of them.
//!
//! A template writes a marker where a picture is. As the models were trained, the marker is expanded to line breaks and
//! delimiters around the image's soft tokens, and to a sentence if crops of the picture follow it. The expansion is
//! text: its line breaks merge with those around them. The soft tokens themselves are not in a tokenizer's vocabulary,
//! so the prompt is returned in pieces, with one image between each two of them.

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// Gemma 3's marker, which also starts an image.
const START: &str = "<start_of_image>";
const END: &str = "<end_of_image>";
/// Before and after an image.
const BREAK: &str = "\n\n";

const BEFORE_PICTURE: &str = "Here is the original image ";
const BEFORE_CROPS: &str = " and here are some crops to help you see better ";
const BETWEEN_CROPS: &str = " ";

/// Whether a token of a vocabulary starts or ends images.
pub(crate) fn is_delimiter(token: &str) -> bool {
    [START, END].contains(&token)
}

/// Checks that the delimiters are control tokens, which text of a user can never become.
pub(crate) fn check_tokenizer(tokenizer: &Tokenizer) -> Result<()> {
    let is_control = |name: &&str| tokenizer.token_id(name).is_some_and(|id| tokenizer.is_special(id));
    match [START, END].iter().find(|name| !is_control(name)) {
        None => Ok(()),
        Some(name) => {
            let text = format!("{name} is not one of its control tokens, so a prompt cannot have images");
            Err(Error::Unsupported(text))
        }
    }
}

/// The error of templates that leave images out.
pub(crate) fn unsupported_template() -> Error {
    Error::Rejected("the model's chat template does not support images: send text only".into())
}

/// Encodes the output of a template, in which each marker stands for a picture that becomes this many images. `mark`
/// breaks up what a user wrote ([`Marks`](crate::marks::Marks)).
pub(crate) fn encode_expanded(
    tokenizer: &Tokenizer,
    text: &str,
    mark: Option<char>,
    images_per_picture: &[usize],
) -> Result<Vec<Vec<u32>>> {
    let found = text.matches(START).count();
    if found == 0 {
        return Err(unsupported_template());
    }
    if found != images_per_picture.len() {
        let given = images_per_picture.len();
        return Err(Error::Rejected(format!(
            "the prompt has {found} <start_of_image>, but {given} images were given"
        )));
    }
    // The piece that is being written.
    let mut piece = String::new();
    let mut pieces = Vec::new();
    let mut rest = text;
    for count in images_per_picture {
        let (before, after) = rest.split_once(START).unwrap_or((rest, ""));
        piece += before;
        rest = after;
        for index in 0..*count {
            piece += match index {
                0 if *count > 1 => BEFORE_PICTURE,
                0 => "",
                1 => BEFORE_CROPS,
                _ => BETWEEN_CROPS,
            };
            piece += BREAK;
            piece += START;
            pieces.push(std::mem::replace(&mut piece, format!("{END}{BREAK}")));
        }
    }
    piece += rest;
    pieces.push(piece);
    let encode = |(index, piece): (usize, &String)| match index {
        0 => tokenizer.encode_marked(piece, mark),
        _ => tokenizer.encode_marked_rest(piece, mark),
    };
    Ok(pieces.iter().enumerate().map(encode).collect())
}

impl Tokenizer {
    /// [`encode_prompt`](Self::encode_prompt) with pictures: in front of the text, or where it has as many
    /// `<start_of_image>` as there are pictures. The result and `images_per_picture` are those of
    /// [`ChatTemplate::encode_with_images`](crate::ChatTemplate::encode_with_images).
    pub fn encode_prompt_with_images(
        &self,
        text: &str,
        images_per_picture: &[usize],
    ) -> Result<Vec<Vec<u32>>> {
        if images_per_picture.is_empty() {
            return Ok(vec![self.encode_prompt(text)]);
        }
        check_tokenizer(self)?;
        match text.contains(START) {
            true => encode_expanded(self, text, None, images_per_picture),
            false => {
                let text = START.repeat(images_per_picture.len()) + text;
                encode_expanded(self, &text, None, images_per_picture)
            }
        }
    }
}
