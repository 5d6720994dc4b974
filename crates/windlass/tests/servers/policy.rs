//! Which sessions may call which server.

use serde_json::json;
use windlass_testkit::mcp_server;

use crate::{Place, with};

#[tokio::test]
async fn a_session_calls_what_its_policy_names_and_sees_no_more() {
    let all = with(mcp_server(&[]), json!({"sessions": "all"}));
    let place = Place::start(json!({"hall": all, "shelf": mcp_server(&[])})).await;
    let [none, some, every] = [
        place.session(&[]).await,
        place.session(&["shelf.echo"]).await,
        place.session(&["*"]).await,
    ];
    place.sees(&every, "shelf.echo").await;
    place.sees(&every, "hall.echo").await;
    let attempt = "for name in ('hall.echo', 'shelf.echo', 'shelf.add'):\n\
        \x20   try:\n        print(tools[name](**({'text': name} if 'echo' in name else {'a': 1, 'b': 2})))\n\
        \x20   except tools.ToolNotFound:\n        print('no', name)\n\
        print([found['name'] for found in tools.search('add two numbers')])\n";
    for (session, expected) in [
        (&none, "hall.echo\nno shelf.echo\nno shelf.add\n['hall.add']\n"),
        (&some, "hall.echo\nshelf.echo\nno shelf.add\n['hall.add']\n"),
        (&every, "hall.echo\nshelf.echo\n{'sum': 3}\n['hall.add', 'shelf.add']\n"),
    ] {
        assert_eq!(place.run(session, attempt).await, expected);
    }
    let names = |found: windlass_client::protocol::api::SessionTools| {
        found.tools.into_iter().map(|tool| tool.name).collect::<Vec<_>>()
    };
    let found = place.client.session_tools(&some, Some("echo")).await.unwrap();
    assert_eq!(names(found), ["hall.echo", "shelf.echo"]);
}
