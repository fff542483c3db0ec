//! Images in prompts: the text around each of them.
//!
//! A template writes a marker where a picture is. As the models were trained, the marker is expanded to delimiters around
//! the image's soft tokens; for Gemma 3 also to line breaks around them, and to a sentence if crops of the picture follow
//! it. The expansion is text: its line breaks merge with those around them. The soft tokens themselves are not in a
//! tokenizer's vocabulary, so the prompt is returned in pieces, with one image between each two of them.

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// How a family writes images in a prompt.
pub(crate) struct ImageSyntax {
    /// What a template writes for a picture.
    marker: &'static str,
    /// Before and after the soft tokens of an image.
    start: &'static str,
    end: &'static str,
    /// Before the start and after the end.
    around: &'static str,
}

const GEMMA3: ImageSyntax = ImageSyntax {
    marker: "<start_of_image>",
    start: "<start_of_image>",
    end: "<end_of_image>",
    around: "\n\n",
};

const GEMMA4: ImageSyntax =
    ImageSyntax { marker: "<|image|>", start: "<|image>", end: "<image|>", around: "" };

const BEFORE_PICTURE: &str = "Here is the original image ";
const BEFORE_CROPS: &str = " and here are some crops to help you see better ";
const BETWEEN_CROPS: &str = " ";

/// Whether a token of a vocabulary starts, ends or stands for an image.
pub(crate) fn is_delimiter(token: &str) -> bool {
    [GEMMA3, GEMMA4].iter().any(|syntax| syntax.tokens().contains(&token))
}

impl ImageSyntax {
    /// The syntax of a tokenizer's family. An error if its tokens are not control tokens, which text of a user can never
    /// become.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Result<&'static ImageSyntax> {
        let is_control = |name: &&str| tokenizer.token_id(name).is_some_and(|id| tokenizer.is_special(id));
        let has = |syntax: &&ImageSyntax| syntax.tokens().iter().all(is_control);
        [&GEMMA3, &GEMMA4].into_iter().find(has).ok_or_else(|| {
            let names = [GEMMA3, GEMMA4].map(|syntax| syntax.tokens().join(", ")).join(" or ");
            Error::Unsupported(format!(
                "its control tokens do not include {names}, so a prompt cannot have images"
            ))
        })
    }

    /// The tokens that a vocabulary must have. Gemma 3's marker is also the start.
    fn tokens(&self) -> [&'static str; 3] {
        [self.marker, self.start, self.end]
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
    let ImageSyntax { marker, start, end, around } = ImageSyntax::of(tokenizer)?;
    let found = text.matches(marker).count();
    if found == 0 {
        return Err(unsupported_template());
    }
    if found != images_per_picture.len() {
        let given = images_per_picture.len();
        return Err(Error::Rejected(format!(
            "the prompt has {found} {marker}, but {given} images were given"
        )));
    }
    // The piece that is being written.
    let mut piece = String::new();
    let mut pieces = Vec::new();
    let mut rest = text;
    for count in images_per_picture {
        let (before, after) = rest.split_once(marker).unwrap_or((rest, ""));
        piece += before;
        rest = after;
        for index in 0..*count {
            piece += match index {
                0 if *count > 1 => BEFORE_PICTURE,
                0 => "",
                1 => BEFORE_CROPS,
                _ => BETWEEN_CROPS,
            };
            piece += around;
            piece += start;
            pieces.push(std::mem::replace(&mut piece, format!("{end}{around}")));
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
    /// [`encode_prompt`](Self::encode_prompt) with pictures: in front of the text, or where it has as many markers
    /// (Gemma 3's `<start_of_image>`, Gemma 4's `<|image|>`) as there are pictures. The result and `images_per_picture`
    /// are those of [`ChatTemplate::encode_with_images`](crate::ChatTemplate::encode_with_images).
    pub fn encode_prompt_with_images(
        &self,
        text: &str,
        images_per_picture: &[usize],
    ) -> Result<Vec<Vec<u32>>> {
        if images_per_picture.is_empty() {
            return Ok(vec![self.encode_prompt(text)]);
        }
        let marker = ImageSyntax::of(self)?.marker;
        match text.contains(marker) {
            true => encode_expanded(self, text, None, images_per_picture),
            false => {
                let text = marker.repeat(images_per_picture.len()) + text;
                encode_expanded(self, &text, None, images_per_picture)
            }
        }
    }
}
