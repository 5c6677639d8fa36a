//! The groups in which sequences start to decode: the busy periods of prompts that arrive at random.

use crate::costs::IterationCosts;

/// Busy periods of prompts: the groups in which sequences start to decode.
///
/// Sizes up to [`EXACT_SIZES`] have exact probabilities (Takacs 1962, "Introduction to the theory of queues", chapter
/// 2). The tail beyond is geometric and keeps the mean and the second moment.
pub(crate) struct PromptGroups {
    /// Fraction of the time that prompts take.
    pub(crate) load: f64,
    /// Mean seconds of prompts in progress that an arriving request finds.
    pub(crate) in_progress: f64,
    /// Probabilities that a group has more than 0, 1, ... members.
    pub(crate) more: Vec<f64>,
    /// Probability that a group has more members than `more` covers. `further` is the probability that such a group has
    /// yet another member.
    pub(crate) beyond: f64,
    pub(crate) further: f64,
    /// Variance of the number of requests that arrive during a prompt.
    pub(crate) varied: f64,
    /// Mean number of members of a sequence's group, itself included.
    pub(crate) own: f64,
}

/// Number of group sizes with exact probabilities. Range 1 to 64: the work rises with its square.
const EXACT_SIZES: usize = 16;
/// Tails with less than this probability are ignored.
const NO_TAIL: f64 = 1e-9;

impl PromptGroups {
    pub(crate) fn at_rate(costs: &IterationCosts, rate: f64) -> Self {
        let (load, squares) = (rate * costs.mean(|r| r.prompt), costs.mean(|r| r.prompt * r.prompt));
        // The square of the load times the squared coefficient of variation of the prompts.
        let apart = (rate * rate * squares - load * load).max(0.0);
        let free = 1.0 - load;
        let more = tail_of_sizes(costs, rate);
        let known: f64 = more.iter().sum();
        let known_by_size: f64 = more.iter().enumerate().map(|(i, p)| i as f64 * p).sum();
        let left = 1.0 / free - known;
        let (mut beyond, mut further) = (0.0, 0.0);
        if left > NO_TAIL && free > 0.0 {
            let all_by_size = ((1.0 + apart) / (free * free) - 1.0) / (2.0 * free);
            let excess = ((all_by_size - known_by_size) / left - more.len() as f64).max(0.0);
            further = excess / (1.0 + excess);
            beyond = left * (1.0 - further);
        }
        Self {
            load,
            in_progress: rate * squares / 2.0,
            more,
            beyond,
            further,
            varied: load + apart,
            own: (1.0 + apart) / (free * free),
        }
    }

    /// Returns three values: the probability of more than `size` members, the sum of these probabilities over all sizes
    /// from `size` on, and the sum of those sums.
    pub(crate) fn tails(&self, size: usize) -> [f64; 3] {
        let last = 1.0 - self.further;
        let past = size.saturating_sub(self.more.len());
        let probability = self.beyond * self.further.powi(past as i32);
        let mut tails = [probability, probability / last, probability / (last * last)];
        for probability in self.more.iter().skip(size).rev() {
            tails[0] = *probability;
            tails[1] += probability;
            tails[2] += tails[1];
        }
        tails
    }
}

/// Returns the probabilities that more than 0, 1, ... prompts follow each other without a pause. A group of k has k - 1
/// arrivals during its k prompts, in one of k orders.
fn tail_of_sizes(costs: &IterationCosts, rate: f64) -> Vec<f64> {
    let mut arrivals = [0.0; EXACT_SIZES];
    for request in &costs.requests {
        let mean = rate * request.prompt;
        let mut probability = request.share * (-mean).exp();
        for (n, sum) in arrivals.iter_mut().enumerate() {
            *sum += probability;
            probability *= mean / (n + 1) as f64;
        }
    }
    let (mut tail, mut left, mut together) = (vec![1.0], 1.0, arrivals);
    for k in 1..EXACT_SIZES {
        left -= together.get(k - 1).map_or(0.0, |p| p / k as f64);
        if left < NO_TAIL {
            break;
        }
        tail.push(left);
        let mut next = [0.0; EXACT_SIZES];
        for (i, own) in together.iter().enumerate() {
            for (sum, one) in next.iter_mut().skip(i).zip(&arrivals) {
                *sum += own * one;
            }
        }
        together = next;
    }
    tail
}
