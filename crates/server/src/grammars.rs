//! What answers are held to: grammars, made of what requests ask for, never on the threads that serve connections.
//!
//! What a model's grammars have in common takes a second or two for a large vocabulary. It is made once, by a thread of its own that begins
//! with the server; a request that comes before it is done waits for it. A grammar is made by another thread, of which there are so many
//! at a time and no more, and those that were used last are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grammar::{Grammar, Matcher};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::config::{Config, Model};
use crate::error::Error;
use crate::openai::{SCHEMA, Shape};

/// The field that tools stand in.
const TOOLS: &str = "tools";

/// Grammars that are kept: more than a few programs at home have schemas.
const KEPT: usize = 32;

/// What makes all grammars of a model, or why there can be none.
type Made = Result<grammar::GrammarCompiler, String>;

/// All grammars of the model that is served.
pub(crate) struct Grammars {
    made: watch::Receiver<Option<Made>>,
    /// One for each that is being made, for as long as that takes.
    makers: Arc<Semaphore>,
    kept: Arc<Mutex<Kept>>,
    time: Duration,
}

impl Grammars {
    /// Begins to make what all of them have in common.
    pub(crate) fn start(model: &Model, config: &Config) -> std::io::Result<Grammars> {
        let (sender, made) = watch::channel(None);
        let (tokenizer, vocab, ends) = (model.tokenizer.clone(), model.vocab, model.ends.clone());
        let make = move || {
            let made =
                grammar::GrammarCompiler::new(&tokenizer, vocab, &ends).map_err(|error| error.to_string());
            if let Err(error) = &made {
                tracing::warn!("answers cannot be held to a format: {error}");
            }
            // Where the server has ended meanwhile, nobody needs it.
            let _ = sender.send(Some(made));
        };
        std::thread::Builder::new().name("grammars".into()).spawn(make)?;
        let makers = Arc::new(Semaphore::new(config.grammar_workers));
        Ok(Grammars { made, makers, kept: Arc::default(), time: config.grammar_timeout })
    }

    /// What holds `count` answers to a shape, one each.
    pub(crate) async fn matchers(&self, shape: Shape, count: usize) -> Result<Vec<Matcher>, Error> {
        let field = match &shape {
            Shape::Object | Shape::Schema(_) => SCHEMA,
            Shape::Calls(_) => TOOLS,
        };
        let grammars = self.common(field).await?;
        let key = match &shape {
            Shape::Object => String::new(),
            Shape::Schema(schema) => schema.to_string(),
            Shape::Calls(calls) => format!("{calls:?}"),
        };
        let known = |kept: &Mutex<Kept>| kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key);
        if let Some(grammar) = known(&self.kept) {
            return self.copies(field, grammar, count).await;
        }
        let place = tokio::time::timeout(self.time, self.makers.clone().acquire_owned()).await;
        let place = place.map_err(|_| Error::QueueFull(self.time))?.expect("it is never closed");
        // Another may have made it while this one waited.
        if let Some(grammar) = known(&self.kept) {
            return self.copies(field, grammar, count).await;
        }
        let kept = self.kept.clone();
        let work = move || {
            let _place = place;
            let grammar = match &shape {
                Shape::Object => grammars.json_object(),
                Shape::Schema(schema) => grammars.json_schema(schema),
                Shape::Calls(calls) => grammars.tool_calls(calls),
            };
            let grammar = Arc::new(grammar.map_err(|error| match error {
                grammar::Error::Tool { index: at, reason: why } => {
                    Error::field(format!("tools[{at}].function.parameters"), format!("cannot be used: {why}"))
                }
                grammar::Error::Invalid { subject: grammar::SCHEMA, .. } => Error::field(SCHEMA, error),
                error => Error::field(field, error),
            })?);
            kept.lock().unwrap_or_else(PoisonError::into_inner).put(key, grammar.clone());
            Ok((0..count).map(|_| grammar.matcher()).collect())
        };
        self.within(field, work).await
    }

    /// What all have in common, as soon as it is there.
    async fn common(&self, field: &str) -> Result<grammar::GrammarCompiler, Error> {
        let mut made = self.made.clone();
        let made = made.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        match made {
            Some(Ok(grammars)) => Ok(grammars),
            Some(Err(why)) => {
                let field = if field == TOOLS { TOOLS } else { "response_format" };
                Err(Error::unsupported(field, format!("a format for answers ({why})")))
            }
            None => Err(Error::Internal),
        }
    }

    /// Followers of a grammar that is there.
    async fn copies(
        &self,
        field: &'static str,
        grammar: Arc<Grammar>,
        count: usize,
    ) -> Result<Vec<Matcher>, Error> {
        self.within(field, move || Ok((0..count).map(|_| grammar.matcher()).collect())).await
    }

    /// Does it on a thread of its own, which goes on when it has taken too long, and keeps its place until it is done.
    async fn within<T: Send + 'static>(
        &self,
        field: &'static str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, done) = oneshot::channel();
        let run = move || {
            // Who has gone meanwhile needs no answer.
            let _ = sender.send(work());
        };
        std::thread::Builder::new().name("grammar".into()).spawn(run).map_err(|error| {
            tracing::error!(%error, "no thread for a grammar");
            Error::Internal
        })?;
        match tokio::time::timeout(self.time, done).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(Error::Internal),
            Err(_) => {
                let seconds = self.time.as_secs_f64();
                let why = format!("is too complex: a grammar for it was not made within {seconds} s");
                Err(Error::field(field, why))
            }
        }
    }
}

/// Grammars by the text of their schemas, the one that was used last at the end.
#[derive(Default)]
struct Kept(VecDeque<(String, Arc<Grammar>)>);

impl Kept {
    fn get(&mut self, key: &str) -> Option<Arc<Grammar>> {
        let at = self.0.iter().position(|(known, _)| known == key)?;
        let entry = self.0.remove(at)?;
        let grammar = entry.1.clone();
        self.0.push_back(entry);
        Some(grammar)
    }

    fn put(&mut self, key: String, grammar: Arc<Grammar>) {
        if self.get(&key).is_none() {
            self.0.push_back((key, grammar));
        }
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
    }
}
