"""A small English-French grammar: a corpus in code, for quick starts and tests without files or network.

English says little about gender and number; French marks them on articles, adjectives and the participles of verbs
with être, elides articles and pronouns before vowels, and puts colours after their noun. A model has to learn all of
that and the order of words, from about 110 English and 240 French words. Every English sentence has one translation
and vice versa.
"""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from lit_project.data.translation.carved import CarvedData
from lit_project.data.translation.graph import Pairs
from lit_project.errors import DataError

_SEED = 1066  # chooses among all sentences; its own constant, so that the corpus is always the same
_TENSES = ("present", "past", "future")


class _Noun(NamedTuple):
    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool


class _Subject(NamedTuple):
    english: str
    french: str
    person: int  # 0 je, 1 tu, 2 il/elle, 3 nous, 4 ils/elles
    feminine: bool

    @property
    def plural(self) -> bool:
        return self.person > 2


class _Verb(NamedTuple):
    english: tuple[str, str, str]  # base, third person, past
    present: tuple[str, str, str, str, str]  # by person
    participle: str
    future: str  # stem


_BEINGS = (
    _Noun("brother", "brothers", "frère", "frères", False),
    _Noun("sister", "sisters", "sœur", "sœurs", True),
    _Noun("friend", "friends", "ami", "amis", False),
    _Noun("aunt", "aunts", "tante", "tantes", True),
    _Noun("child", "children", "enfant", "enfants", False),
    _Noun("neighbour", "neighbours", "voisin", "voisins", False),
    _Noun("nurse", "nurses", "infirmière", "infirmières", True),
    _Noun("bird", "birds", "oiseau", "oiseaux", False),
    _Noun("cow", "cows", "vache", "vaches", True),
    _Noun("cat", "cats", "chat", "chats", False),
)
_THINGS = (
    _Noun("book", "books", "livre", "livres", False),
    _Noun("car", "cars", "voiture", "voitures", True),
    _Noun("hat", "hats", "chapeau", "chapeaux", False),
    _Noun("key", "keys", "clé", "clés", True),
    _Noun("umbrella", "umbrellas", "parapluie", "parapluies", False),
    _Noun("scarf", "scarves", "écharpe", "écharpes", True),
    _Noun("tree", "trees", "arbre", "arbres", False),
    _Noun("apple", "apples", "pomme", "pommes", True),
)
_PRONOUNS = (
    _Subject("I", "je", 0, False),
    _Subject("you", "tu", 1, False),
    _Subject("he", "il", 2, False),
    _Subject("she", "elle", 2, True),
    _Subject("we", "nous", 3, False),
    _Subject("they", "ils", 4, False),
)
# English: masculine, feminine, masculine plural, feminine plural
_STATES = {
    "tired": ("fatigué", "fatiguée", "fatigués", "fatiguées"),
    "happy": ("heureux", "heureuse", "heureux", "heureuses"),
    "old": ("vieux", "vieille", "vieux", "vieilles"),
    "small": ("petit", "petite", "petits", "petites"),
    "sad": ("triste", "triste", "tristes", "tristes"),
    "ready": ("prêt", "prête", "prêts", "prêtes"),
    "proud": ("fier", "fière", "fiers", "fières"),
    "quiet": ("calme", "calme", "calmes", "calmes"),
}
_COLOURS = {
    "red": ("rouge", "rouge", "rouges", "rouges"),
    "green": ("vert", "verte", "verts", "vertes"),
    "blue": ("bleu", "bleue", "bleus", "bleues"),
    "white": ("blanc", "blanche", "blancs", "blanches"),
    "black": ("noir", "noire", "noirs", "noires"),
}
_MOTIONS = (  # with être in the past
    _Verb(
        ("arrive", "arrives", "arrived"), ("arrive", "arrives", "arrive", "arrivons", "arrivent"), "arrivé", "arriver"
    ),
    _Verb(("leave", "leaves", "left"), ("pars", "pars", "part", "partons", "partent"), "parti", "partir"),
    _Verb(
        ("come back", "comes back", "came back"),
        ("reviens", "reviens", "revient", "revenons", "reviennent"),
        "revenu",
        "reviendr",
    ),
    _Verb(("stay", "stays", "stayed"), ("reste", "restes", "reste", "restons", "restent"), "resté", "rester"),
)
_ACTIONS = (  # with avoir
    _Verb(("see", "sees", "saw"), ("vois", "vois", "voit", "voyons", "voient"), "vu", "verr"),
    _Verb(("buy", "buys", "bought"), ("achète", "achètes", "achète", "achetons", "achètent"), "acheté", "achèter"),
    _Verb(("sell", "sells", "sold"), ("vends", "vends", "vend", "vendons", "vendent"), "vendu", "vendr"),
    _Verb(
        ("look for", "looks for", "looked for"),
        ("cherche", "cherches", "cherche", "cherchons", "cherchent"),
        "cherché",
        "chercher",
    ),
    _Verb(("find", "finds", "found"), ("trouve", "trouves", "trouve", "trouvons", "trouvent"), "trouvé", "trouver"),
)
_ADVERBS = {
    "present": (("today", "aujourd'hui"), ("every day", "chaque jour")),
    "past": (("yesterday", "hier"), ("on Monday", "lundi")),
    "future": (("tomorrow", "demain"), ("on Monday", "lundi")),
}
_TO_BE = {
    "present": ("suis", "es", "est", "sommes", "sont"),
    "past": ("étais", "étais", "était", "étions", "étaient"),
    "future": ("serai", "seras", "sera", "serons", "seront"),
}
_TO_HAVE = ("ai", "as", "a", "avons", "ont")
_FUTURE = ("ai", "as", "a", "ons", "ont")
_ARTICLES = {  # masculine, feminine, plural, before a vowel: masculine, feminine
    "the": ("le", "la", "les", "l'", "l'"),
    "my": ("mon", "ma", "mes", "mon", "mon"),
    "this": ("ce", "cette", "ces", "cet", "cette"),
    "a": ("un", "une", "des", "un", "une"),
}
_PLURAL_ARTICLES = {"the": "the", "my": "my", "this": "these", "a": "some"}


def _vowel(word: str) -> bool:
    return word[0] in "aeiouéèêh"


def _join(first: str, second: str) -> str:
    return f"{first}{second}" if first.endswith("'") else f"{first} {second}"


def _noun_phrase(article: str, noun: _Noun, plural: bool, colour: str | None = None) -> tuple[str, str]:
    """English and French, such as "this green hat", "ce chapeau vert"."""
    french = noun.french_plural if plural else noun.french
    form = 2 if plural else int(noun.feminine) + (3 if _vowel(french) else 0)
    phrase = _join(_ARTICLES[article][form], french)
    name = noun.english_plural if plural else noun.english
    if colour is not None:
        phrase += f" {_COLOURS[colour][2 * plural + noun.feminine]}"
        name = f"{colour} {name}"
    if plural:
        article = _PLURAL_ARTICLES[article]
    elif article == "a" and _vowel(name):
        article = "an"
    return f"{article} {name}", phrase


def _subjects() -> Iterator[_Subject]:
    yield from _PRONOUNS
    for article, noun, plural in product(("the", "my", "this"), _BEINGS, (False, True)):
        english, french = _noun_phrase(article, noun, plural)
        yield _Subject(english, french, 4 if plural else 2, noun.feminine)


def _sentence(subject: _Subject, english: str, french: str) -> tuple[str, str]:
    """Subject and predicate as sentences."""
    start = "j'" if subject.french == "je" and _vowel(french) else subject.french
    pair = f"{subject.english} {english}.", f"{_join(start, french)}."
    return pair[0][0].upper() + pair[0][1:], pair[1][0].upper() + pair[1][1:]


def _states(subject: _Subject) -> Iterator[tuple[str, str]]:
    """Is tired, was very happy, will not be ready."""
    for tense, (state, forms), how in product(_TENSES, _STATES.items(), ("", "very", "not")):
        being = _TO_BE[tense][subject.person]
        if how == "not":
            being = f"{'n' + chr(39) if _vowel(being) else 'ne '}{being} pas"
        adjective = forms[2 * subject.plural + subject.feminine]
        french = f"{being} très {adjective}" if how == "very" else f"{being} {adjective}"
        many = subject.plural or subject.person == 1
        present = "am" if subject.person == 0 else "are" if many else "is"
        verb = {"present": present, "past": "were" if many else "was", "future": "will"}[tense]
        words = [verb, how if how == "not" else "", "be" if tense == "future" else "", how if how == "very" else ""]
        yield _sentence(subject, " ".join([*filter(None, words), state]), french)


def _conjugated(subject: _Subject, verb: _Verb, tense: str, with_be: bool) -> tuple[str, str]:
    base, third, past = verb.english
    if tense == "present":
        return third if subject.person == 2 else base, verb.present[subject.person]
    if tense == "future":
        return f"will {base}", verb.future + _FUTURE[subject.person]
    if not with_be:
        return past, f"{_TO_HAVE[subject.person]} {verb.participle}"
    agreement = ("e" if subject.feminine else "") + ("s" if subject.plural else "")
    return past, f"{_TO_BE['present'][subject.person]} {verb.participle}{agreement}"


def _motions(subject: _Subject) -> Iterator[tuple[str, str]]:
    """Arrives, came back yesterday, will leave on Monday."""
    for verb, tense in product(_MOTIONS, _TENSES):
        english, french = _conjugated(subject, verb, tense, with_be=True)
        for when, quand in (("", ""), *_ADVERBS[tense]):
            yield _sentence(subject, f"{english} {when}".strip(), f"{french} {quand}".strip())


def _actions(subject: _Subject) -> Iterator[tuple[str, str]]:
    """Sees the tree, bought a red hat, will look for these keys."""
    objects = product(_ARTICLES, _THINGS, (False, True), (None, *_COLOURS))
    phrases = [_noun_phrase(article, noun, plural, colour) for article, noun, plural, colour in objects]
    for verb, tense in product(_ACTIONS, _TENSES):
        english, french = _conjugated(subject, verb, tense, with_be=False)
        for thing, chose in phrases:
            yield _sentence(subject, f"{english} {thing}", f"{french} {chose}")


def sentences(size: int) -> list[tuple[str, str]]:
    """English-French pairs, a third of each kind of predicate; always the same ones.

    Raises:
        DataError: a size that is not between 3 and what the grammar makes.
    """
    chosen: list[tuple[str, str]] = []
    generator = random.Random(_SEED)
    subjects = list(_subjects())
    for number, kind in enumerate((_motions, _states, _actions)):
        own = [pair for subject in subjects for pair in kind(subject)]
        generator.shuffle(own)
        # the kinds that make fewer sentences leave their share to the next
        chosen += own[: (size - len(chosen)) // (3 - number)]
    if size < 3 or len(chosen) < size:
        raise DataError(f"size {size}: the grammar makes 3 to {len(chosen)} pairs")
    generator.shuffle(chosen)
    return chosen


class ToyGrammar(CarvedData):
    """Sentences of a small grammar, made in code: no file is read.

    Args:
        size: pairs in all.
        val_size: pairs of validation.
        test_size: pairs of test.
        **kwargs: of `TranslationData`.

    Raises:
        DataError: more pairs than the grammar makes.
    """

    LANGUAGES = ("en", "fr")

    def __init__(self, size: int = 6000, val_size: int = 300, test_size: int = 300, **kwargs: Any) -> None:
        super().__init__(val_size, test_size, **kwargs)
        self.size = size

    def pool(self) -> Pairs:
        """All pairs as (source, target)."""
        pairs = sentences(self.size)
        return pairs if self.source == "en" else [(french, english) for english, french in pairs]
