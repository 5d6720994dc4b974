//! What tenants use on a node.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::TenantName;
use crate::policy::Limits;

/// Whose usage to tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// Only that of this tenant. A client whose token has a tenant sees no other.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
}

/// What each tenant uses on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageList {
    /// Since when turns are counted: the start of the node.
    pub since_ms: u64,
    /// By name, first what belongs to no tenant.
    pub tenants: Vec<TenantUsage>,
}

/// What one tenant uses on one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TenantUsage {
    /// Absent: sessions without a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantName>,
    /// Number of live sessions.
    pub sessions: u64,
    /// The limits of the live sessions together. A quota counts them.
    pub held: Limits,
    /// What the processes of its sessions use.
    #[serde(default)]
    pub measured: MeasuredUsage,
    /// Number of ended turns.
    pub turns: u64,
    /// CPU time of the turns.
    pub cpu_ms: f64,
    /// Bytes that the turns printed.
    pub output_bytes: u64,
}

/// What the processes of sessions use, as the kernel counts it in cgroups. A figure is absent if no cgroup counts it.
/// Cgroups of version 1 count CPU time only where `cpuacct` and `cpu` are one hierarchy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MeasuredUsage {
    /// Number of live sessions that are measured.
    pub sessions: u64,
    /// Memory of their processes now, with the files that the kernel caches for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// CPU time of live sessions since they began, and of sessions that have ended since the node started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<f64>,
}
