//! Output over the byte budget of a reply: what is shown, what is linked, and how to read the rest.

use serde_json::{Value, json};
use windlass_testkit::McpClient;
use windlass_testkit::mcp::{STATELESS, output_of, text_of};

use crate::{place, said};

/// More lines than a small reply holds.
const LINES: usize = 20_000;

fn whole() -> String {
    (0..LINES).map(|number| format!("line {number}\n")).collect()
}

async fn print_lines(agent: &mut McpClient) -> Value {
    let code = format!("for n in range({LINES}):\n    print('line', n)");
    agent.call("run", json!({"code": code, "max_tokens": 200})).await
}

#[tokio::test]
async fn output_over_the_budget_has_head_tail_a_remark_and_a_link_to_all_of_it() {
    let place = place();
    for revision in [STATELESS, "2025-06-18"] {
        let mut agent = McpClient::builder(&place).revision(revision).start().await.unwrap();
        let reply = print_lines(&mut agent).await;
        let text = text_of(&reply);
        assert!(text.starts_with("line 0\nline 1\n"), "{text}");
        assert!(text.contains(&format!("line {}\n", LINES - 1)), "{text}");
        let omitted = said(&reply, "omitted_bytes").as_u64().unwrap();
        let remark =
            format!("[... {omitted} of {} bytes not shown; read_output has", whole().len());
        assert!(text.contains(&remark), "{text}");
        assert!(text.len() < 2_000, "{} bytes for 200 tokens", text.len());

        let links: Vec<&Value> = reply["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|block| block["type"] == "resource_link")
            .collect();
        assert_eq!(links.len(), 1, "{reply}");
        assert_eq!(links[0]["size"], whole().len(), "{}", links[0]);
        let read = agent.request("resources/read", json!({"uri": links[0]["uri"]})).await;
        let read = read.unwrap().unwrap();
        assert_eq!(read["contents"][0]["mimeType"], "text/plain");
        assert!(read["contents"][0]["text"].as_str().unwrap() == whole(), "some is missing");
    }
}

#[tokio::test]
async fn a_resource_that_is_longer_than_one_read_says_where_the_rest_is() {
    const BYTES: usize = 2_500_000;
    let place = place();
    let mut agent = McpClient::start(&place).await.unwrap();
    let code = format!("for _ in range(25):\n    print('x' * {})", BYTES / 25 - 1);
    agent.run_ok(&code).await;
    let listed = agent.request("resources/list", json!({})).await.unwrap().unwrap();
    let mut uri = listed["resources"][0]["uri"].clone();
    let (mut bytes, mut reads) = (0, 0);
    while uri.is_string() {
        let read = agent.request("resources/read", json!({"uri": uri})).await.unwrap().unwrap();
        bytes += read["contents"][0]["text"].as_str().unwrap().len();
        reads += 1;
        uri = read["contents"][0]["_meta"]["windlass/next"].clone();
    }
    assert_eq!((bytes, reads), (BYTES, 3));
}

#[tokio::test]
async fn a_resource_that_is_not_there_is_an_error_of_the_protocol() {
    let place = place();
    for (revision, code) in [(STATELESS, -32602), ("2025-11-25", -32002)] {
        let mut agent = McpClient::builder(&place).revision(revision).start().await.unwrap();
        for uri in [
            "file:///etc/passwd",
            "windlass://sessions/none/output",
            "windlass://sessions/none/turns/t1/output",
            "windlass://sessions/../../etc/passwd",
        ] {
            let read = agent.request("resources/read", json!({"uri": uri})).await.unwrap();
            assert_eq!(read.unwrap_err()["code"], code, "{revision} {uri}");
        }
    }
}

#[tokio::test]
async fn read_output_reads_from_a_byte_the_tail_and_lines_that_hold_a_text() {
    let place = place();
    let mut agent = McpClient::start(&place).await.unwrap();
    let turn = said(&print_lines(&mut agent).await, "turn").clone();
    assert_eq!(agent.run_ok("print('another turn')").await, "another turn\n");
    let whole = whole();

    let mut from = 0;
    let mut all = String::new();
    loop {
        let asked = json!({"turn": turn, "from": from, "max_tokens": 20_000});
        let part = agent.call("read_output", asked).await;
        all.push_str(output_of(&part));
        from = said(&part, "next").as_u64().unwrap();
        assert_eq!(said(&part, "total"), whole.len(), "{turn}");
        if said(&part, "more") == false {
            break;
        }
    }
    assert!(all == whole, "{} bytes of {}", all.len(), whole.len());

    let tail = agent.call("read_output", json!({"turn": turn, "tail": 11})).await;
    assert_eq!(output_of(&tail), "line 19999\n");
    let session = agent.call("read_output", json!({"tail": 13})).await;
    assert_eq!(output_of(&session), "another turn\n");

    let found = agent.call("read_output", json!({"search": "line 1999", "turn": turn})).await;
    let lines: Vec<&str> = output_of(&found).lines().collect();
    assert_eq!(lines.len(), 11, "{found}");
    let offset = whole.find("line 1999\n").unwrap();
    assert_eq!(lines[0], format!("{offset}: line 1999"));
    let none = agent.call("read_output", json!({"search": "never printed"})).await;
    assert_eq!((output_of(&none), text_of(&none)), ("", "(no such line)"));
}
