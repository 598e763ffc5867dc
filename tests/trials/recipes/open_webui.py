"""Open WebUI of the recipe in Chromium: a member of each team sees one model, asks both questions,
and reads the answer that is in the team's own documents only. Pictures: build/recipes."""

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e.console.browser import chromium

PICTURES = Path(__file__).resolve().parents[3] / "build" / "recipes"
ADDRESS = "http://localhost:8080"
ASKED = {
    "red": ("Which animal does Quentin Bruvik keep?", "goat"),
    "blue": ("What is the symbol of Old Zanska?", "eagle"),
}
MODELS = """async () => (await (await fetch('/api/models', {
    headers: {Authorization: `Bearer ${localStorage.token}`}})).json()).data.map(one => one.id)"""


def ask(page: Page, question: str) -> str:
    page.goto(ADDRESS)
    page.locator("#chat-input").click()
    page.keyboard.type(question)
    page.keyboard.press("Enter")
    expect(page.locator("button[aria-label='Good Response']")).to_be_visible()  # it is whole
    return page.locator(".chat-assistant").last.inner_text()


if __name__ == "__main__":
    with chromium() as browser:
        for team in ASKED:
            page = browser.new_page(viewport={"width": 900, "height": 480})
            page.goto(f"{ADDRESS}/auth")
            page.locator("#email").fill(f"{team}@example.com")
            page.locator("#password").fill("change-me")
            page.locator("button[type=submit]").click()
            expect(page.locator("#chat-input")).to_be_visible()
            assert page.evaluate(MODELS) == [f"{team}.kvstitch-demo"]
            for owner, (question, right) in ASKED.items():
                answer = ask(page, question)
                if owner == team:
                    page.get_by_text("1 Source").click()
                page.screenshot(path=PICTURES / f"{team}-asks-{owner}.png")
                print(f"  {team} asks {question!r}: {answer!r}")
                assert (right in answer) == ("Source" in answer) == (owner == team)
