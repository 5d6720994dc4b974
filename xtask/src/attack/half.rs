//! One half of a run: every attack at every level, with the rights of whoever runs this.

use std::path::Path;

use anyhow::{Context, Result};
use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{Attack, Stage, Verdict};

use super::row::Row;

/// Plays the attacks and gives each row as soon as it is known.
pub fn play(
    program: &Path,
    attacks: &[Attack],
    levels: &[Isolation],
    mut tell: impl FnMut(Row),
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stage = Stage::new(program).await?;
        for level in levels {
            let mut scene = stage.scene(*level).await?;
            for attack in attacks.iter().filter(|attack| attack.is_for_this_user()) {
                let verdict = scene.play(attack).await;
                let verdict = verdict.with_context(|| format!("{} at {level}", attack.program))?;
                tell(Row::new(attack, *level, verdict));
            }
            if let Some(last) = attacks.last()
                && !scene.victim_is_whole().await?
            {
                let harm = Verdict::Through("another session was harmed by one of them".to_owned());
                tell(Row::new(last, *level, harm));
            }
        }
        Ok(())
    })
}
