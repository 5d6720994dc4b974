//! What a client learns at the start, and which module handles each of its requests.

use std::borrow::Cow;

use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestMethod,
    CompleteRequestParams, CompleteResult, ExperimentalCapabilities, GetTaskParams, GetTaskResult,
    Implementation, JsonObject, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, Tool, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::call::{ClientCall, text_only};
use crate::door::Door;
use crate::{codex, resources, schema, tasks, tools};

/// The supported MCP revisions.
pub(crate) const REVISIONS: [ProtocolVersion; 4] = [
    ProtocolVersion::V_2025_03_26,
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_11_25,
    ProtocolVersion::V_2026_07_28,
];

impl ServerHandler for Door {
    fn get_info(&self) -> ServerConfig {
        let mut experimental = ExperimentalCapabilities::new();
        experimental.insert(codex::CAPABILITY.to_owned(), JsonObject::new());
        let capabilities = ServerCapabilities::builder()
            .enable_experimental_with(experimental)
            .enable_resources()
            .enable_tools()
            .enable_tasks()
            .build();
        let about = Implementation::new("windlass", env!("CARGO_PKG_VERSION"))
            .with_title("Windlass")
            .with_description("Persistent, confined sessions of code");
        ServerConfig::new(capabilities).with_server_info(about).with_instructions(
            match self.agent {
                Some(_) => schema::AGENT_INSTRUCTIONS,
                None => schema::INSTRUCTIONS,
            },
        )
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(&REVISIONS)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        schema::tools().iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tools = schema::tools().to_vec();
        schema::name_languages(&mut tools, self.workers().await);
        if text_only(self, &context) {
            tools.iter_mut().for_each(|tool| tool.output_schema = None);
        }
        Ok(ListToolsResult::with_all_items(tools).with_cache_scope(CacheScope::Private))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = match ClientCall::new(self, &context).await {
            Ok(call) => call,
            Err(fault) => return Ok(fault.into_result().into()),
        };
        let mut done = tools::call(self, &call, request).await;
        if text_only(self, &context)
            && let Ok(CallToolResponse::Complete(result)) = &mut done
        {
            result.structured_content = None;
        }
        done
    }

    /// The door has no prompts, and its capabilities say so.
    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(self).await
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(self, &context, &request.uri).await.map(Into::into)
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        tasks::look(self, &context, &request.task_id).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::answer(self, &request.task_id, &request.input_responses).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::cancel(self, &request.task_id).await
    }
}
