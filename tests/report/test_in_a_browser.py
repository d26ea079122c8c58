"""The page in Debian's Chromium: it loads alone, and everybody can read it."""

import pytest

import unsoftmax as us
from tests.report.results import COURSE, audited, compared, fill, random_heads, recovery_of
from unsoftmax.campaign.recovery import RefusedRun
from unsoftmax.report.page import write_page

PLACES = [(1280, "light"), (1280, "dark"), (390, "dark"), (390, "light")]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    recovery_of(random_heads()).save(folder)
    us.Verification("same", 20, None, {"W": 1e-9, "v": 2e-9}, 1e-16, 0.3, ("Noted.",)).save(folder)
    error = us.NotIdentifiable("v = 0.", determined={"v": 0.0})
    RefusedRun.of(error, us.learners.ExactHead(3).settings(), COURSE).save(folder)
    audited("as it is").save(folder)
    compared("rounding").save(folder)
    return write_page(folder).as_uri()


@pytest.fixture
def opened(browser, address, request):
    """A page at a width and in a scheme, with what it asked for and what it complained of."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, heard = context.new_page(), []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda asked: heard.append(asked.url))
    page.goto(address)
    yield page, heard
    context.close()


def strange(heard):
    """What a page asked for beside itself, and what it complained of."""
    return [said for said in heard if not said.startswith(("file:", "data:"))]


def every(name="opened"):
    return pytest.mark.parametrize(name, PLACES, indirect=True, ids=lambda x: "-".join(map(str, x)))


@pytest.mark.few(2)
@every()
def test_it_loads_alone_and_axe_finds_nothing(opened):
    from axe_playwright_python.sync_playwright import Axe

    page, heard = opened
    assert strange(heard) == []
    found = Axe().run(page).response
    assert [(v["id"], v["impact"], v["nodes"][0]["html"]) for v in found["violations"]] == []
    assert {"color-contrast", "svg-img-alt"} <= {rule["id"] for rule in found["passes"]}
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


@pytest.mark.few(2)
@every()
def test_the_first_screen_has_the_answer_and_what_follows_from_it(opened, tmp_path):
    page, _ = opened
    recovery_of(random_heads()).save(tmp_path)
    page.goto(write_page(tmp_path).as_uri())
    for wanted in (
        *("Anyone who may ask 340 questions can copy this model.", "shown, and checked"),
        *("What to do next", "questions of the attack", "--price P", "date", "folder"),
    ):
        box = page.locator("header").get_by_text(wanted).first.bounding_box()
        assert box is not None, wanted
        assert box["y"] + box["height"] <= 800, wanted
    shown = page.locator("[aria-current]")
    assert shown.inner_text().split() == ["Critical", "shown,", "and", "checked"]
    colours = page.evaluate(
        """() => [...document.querySelectorAll('.scale li')].map(
        e => getComputedStyle(e).backgroundColor)"""
    )
    assert len(colours) == 5
    assert colours.count(colours[4]) == 1


@pytest.mark.parametrize("opened", [(400, "dark")], indirect=True)
def test_all_that_can_be_focused_is_reached_and_shows_it(opened):
    page, _ = opened
    wanted = page.evaluate("document.querySelectorAll('a[href], [tabindex]').length")
    seen = set()
    for _ in range(wanted):
        page.keyboard.press("Tab")
        place, outline, box = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
            const r = e.getBoundingClientRect();
            return [[...document.querySelectorAll('*')].indexOf(e), s.outlineStyle + s.outlineWidth,
                    [r.right, r.bottom]] }"""
        )
        assert outline == "solid3px"
        assert min(box) > 0
        seen.add(place)
    assert len(seen) == wanted > 10


@pytest.mark.parametrize("opened", [(1280, "light"), (1280, "dark")], indirect=True)
def test_figures_are_drawn_in_the_schemes_colours(opened):
    page, _ = opened
    colours = page.evaluate(
        """() => [...document.querySelectorAll('svg text')].map(t => getComputedStyle(t).fill)"""
    )
    ink = page.evaluate("getComputedStyle(document.documentElement).color")
    assert len(colours) > 50
    assert colours.count(ink) > len(colours) / 2
    heights = page.evaluate("[...document.querySelectorAll('svg')].map(s => s.clientHeight)")
    assert min(heights) > 100


@pytest.mark.parametrize("opened", [(1280, "light")], indirect=True)
def test_hostile_texts_do_nothing(opened, tmp_path):
    page, heard = opened
    page.goto(write_page(fill(tmp_path)).as_uri())
    assert page.evaluate("document.querySelectorAll('script, img, iframe').length") == 0
    assert "fetch('http://evil.test')" in page.inner_text("main")
    assert strange(heard) == []
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("opened", [(400, "light")], indirect=True)
def test_what_these_tests_look_for_is_seen(opened):
    from axe_playwright_python.sync_playwright import Axe

    page, heard = opened
    page.goto("about:blank")
    page.set_content(
        "<img src='http://127.0.0.1:9/x.png'><p style='color:#999;background:#fff;width:600px'>Pale"
        "<script>console.error('heard'); undefined_function()</script>"
    )
    assert {"http://127.0.0.1:9/x.png", "heard"} <= {*strange(heard)}
    assert any("undefined_function" in said for said in heard)
    rules = {violation["id"] for violation in Axe().run(page).response["violations"]}
    assert {"image-alt", "color-contrast"} <= rules
    assert page.evaluate("document.documentElement.scrollWidth") > 400
