//! The messages of a chat and their images.

use engine::join_images;
use model::language::Language;
use text::{ChatTemplate, Message, PromptOptions, Tool};

use crate::{Error, PromptImage, Result};

/// Tokens of the context to keep free for a reply: an eighth of it, between 16 and 512.
const REPLY_DIVISOR: usize = 8;
const MIN_REPLY_TOKENS: usize = 16;
const MAX_REPLY_TOKENS: usize = 512;

/// Messages with one image for each of their image parts.
#[derive(Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    /// In the order of their parts.
    images: Vec<PromptImage>,
}

impl Conversation {
    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The images of the messages from `start` on.
    pub(crate) fn images_from(&self, start: usize) -> &[PromptImage] {
        &self.images[self.image_count(start)..]
    }

    /// Number of images in the first `count` messages.
    fn image_count(&self, count: usize) -> usize {
        self.messages.iter().take(count).map(Message::image_count).sum()
    }

    /// Adds a message; an error if it has another number of image parts.
    pub(crate) fn push(&mut self, message: Message, images: Vec<PromptImage>) -> Result<()> {
        let (parts, given) = (message.image_count(), images.len());
        if parts != given {
            return Err(Error::ImageCount { parts, given });
        }
        self.messages.push(message);
        self.images.extend(images);
        Ok(())
    }

    /// Keeps the first `count` messages.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.images.truncate(self.image_count(count));
        self.messages.truncate(count);
    }

    /// Removes the first `count` messages.
    pub(crate) fn drop_oldest(&mut self, count: usize) {
        self.images.drain(..self.image_count(count));
        self.messages.drain(..count);
    }

    /// The conversation as tokens, and how many of its oldest messages do not fit the context.
    pub(crate) fn prompt(
        &self,
        language: &Language,
        template: &ChatTemplate,
        system: Option<&str>,
        tools: &[Tool],
        options: &PromptOptions,
        context: u32,
    ) -> Result<(Vec<u32>, usize)> {
        let reply_tokens = (context as usize / REPLY_DIVISOR).clamp(MIN_REPLY_TOKENS, MAX_REPLY_TOKENS);
        // Messages are dropped by exchange, from one user message to the next. The last exchange stays.
        let users = self.messages.iter().enumerate().filter(|(_, message)| message.role == "user");
        let mut starts: Vec<usize> = users.map(|(index, _)| index).collect();
        // Messages before the first user message belong to the first exchange.
        *starts.first_mut().ok_or(Error::EmptyChat)? = 0;
        let last = starts[starts.len() - 1];
        for dropped in starts {
            let system = system.iter().map(|system| Message::new("system", *system));
            let messages: Vec<Message> = system.chain(self.messages[dropped..].iter().cloned()).collect();
            let images = self.images_from(dropped);
            let counts = PromptImage::counts(images);
            let pieces =
                template.encode_with_images(&language.tokenizer, &messages, tools, options, &counts)?;
            let prompt = join_images(&pieces, &PromptImage::images(images));
            if prompt.len() + reply_tokens <= context as usize || dropped == last {
                return Ok((prompt, dropped));
            }
        }
        Err(Error::EmptyChat)
    }
}

#[cfg(test)]
mod tests {
    use text::{Content, DecodeSpecial, Part};

    use super::*;
    use crate::ImageReader;
    use crate::image::tests::{bmp, vision_language};

    fn user(text: &str, images: usize) -> Message {
        let parts = std::iter::repeat_n(Part::Image, images).chain([Part::Text(text.to_owned())]);
        Message::new("user", Content::Parts(parts.collect()))
    }

    #[test]
    fn images_stay_with_their_messages() {
        let language = vision_language();
        let reader = ImageReader::new(&language).unwrap();
        let [red, blue] = [10, 200].map(|colour| reader.decode(&bmp(8, 8, colour)).unwrap());
        let mut conversation = Conversation::default();
        conversation.push(user("a", 1), vec![red.clone()]).unwrap();
        conversation.push(Message::new("assistant", "b"), vec![]).unwrap();
        conversation.push(user("c", 2), vec![blue.clone(), red.clone()]).unwrap();
        assert!(matches!(conversation.push(user("d", 1), vec![]), Err(Error::ImageCount { .. })));
        assert!(matches!(conversation.push(user("d", 0), vec![red.clone()]), Err(Error::ImageCount { .. })));

        let template = language.template.as_ref().unwrap();
        let options = PromptOptions::default();
        let prompt = |conversation: &Conversation, context| {
            let (prompt, dropped) =
                conversation.prompt(&language, template, Some("s"), &[], &options, context).unwrap();
            let blocks: Vec<_> = model::image_blocks(&prompt).map(|block| prompt[block].to_vec()).collect();
            (language.tokenizer.decode(&prompt, DecodeSpecial::Keep), blocks, dropped)
        };
        let tokens = |images: &[&PromptImage]| -> Vec<Vec<u32>> {
            let images: Vec<PromptImage> = images.iter().map(|image| (*image).clone()).collect();
            PromptImage::images(&images).iter().map(|image| image.tokens().collect()).collect()
        };
        let (text, blocks, dropped) = prompt(&conversation, 4096);
        assert_eq!((blocks, dropped), (tokens(&[&red, &blue, &red]), 0), "{text}");
        // Too long: the first exchange goes, with its image.
        let (text, blocks, dropped) = prompt(&conversation, 16);
        assert_eq!((blocks, dropped), (tokens(&[&blue, &red]), 2), "{text}");
        conversation.drop_oldest(dropped);
        assert_eq!(conversation.images_from(0), [blue.clone(), red.clone()]);
        conversation.truncate(1);
        assert_eq!(conversation.images_from(0).len(), 2);
        conversation.truncate(0);
        assert!(conversation.images_from(0).is_empty() && conversation.messages().is_empty());
    }
}
