"""A mailbox with one mail in it, to which one answer may be sent."""

from __future__ import annotations

from agentenv_protocol import AgentEnvEnvironment, DataPart, environment_card, get_data, tool

MAIL = "From: Ada. When does the ferry leave?"


@environment_card(name="email")
class Mailbox(AgentEnvEnvironment):
    """The mailbox."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    @tool(structured_output=False)
    def read_mail(self) -> str:
        """Shows the mail."""
        return MAIL

    @tool(structured_output=False)
    def send_mail(self, text: str) -> str:
        """Answers the mail."""
        self.sent.append(text)
        return "sent"

    @get_data
    def state(self) -> list[DataPart]:
        """What was sent."""
        return [DataPart(data={"sent": self.sent})]


if __name__ == "__main__":
    Mailbox().serve()
