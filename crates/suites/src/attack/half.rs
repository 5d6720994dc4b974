//! One half of a run: every attack at every level and network setting, as the current user.

use std::path::Path;

use anyhow::{Context, Result};
use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{Attack, AttackStage, AttackVerdict, AttackWorker, NetworkSetting};

use super::row::AttackRow;

/// Runs the attacks and passes each result to `tell` as soon as the attack has ended.
pub fn play(
    program: &Path,
    worker: AttackWorker,
    attacks: &[Attack],
    settings: &[(Isolation, NetworkSetting)],
    mut tell: impl FnMut(AttackRow),
) -> Result<()> {
    let mine: Vec<&Attack> = attacks.iter().filter(|attack| attack.is_for_this_user()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stage = AttackStage::new(program).await?.from_worker(worker);
        for setting in settings {
            play_setting(&mut stage, &mine, *setting, &mut tell).await?;
        }
        Ok(())
    })
}

async fn play_setting(
    stage: &mut AttackStage,
    attacks: &[&Attack],
    setting: (Isolation, NetworkSetting),
    tell: &mut impl FnMut(AttackRow),
) -> Result<()> {
    let (level, network) = setting;
    let mut attacks = attacks.to_vec();
    if network != NetworkSetting::None {
        attacks.retain(|attack| !attack.is_played_once());
    }
    if let Some(why) = stage.refusal(level, network).await? {
        let refused = |attack: &&Attack| {
            AttackRow::new(attack, setting, AttackVerdict::NotClaimed(why.clone()))
        };
        attacks.iter().map(refused).for_each(tell);
        return Ok(());
    }
    let mut scene = stage.scene_on(level, network).await?;
    for attack in &attacks {
        let verdict = scene.play(attack).await;
        let context = || format!("{} at {level} with network {network}", attack.program);
        tell(AttackRow::new(attack, setting, verdict.with_context(context)?));
    }
    if let Some(last) = attacks.last()
        && !scene.victim_is_whole().await?
    {
        let harm = AttackVerdict::Through("one of the attacks harmed another session".to_owned());
        tell(AttackRow::new(last, setting, harm));
    }
    Ok(())
}
