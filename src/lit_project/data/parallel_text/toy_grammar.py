"""A small English-French grammar, its sentences, and a data module for them."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from lit_engine.errors import DataError
from lit_project.data.parallel_text.base import CarvedData
from lit_project.data.parallel_text.leak_free_split import Pairs


class Noun(NamedTuple):
    """The singular and plural of a noun in English and French."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool


class Subject(NamedTuple):
    """The subject of a sentence."""

    english: str
    french: str
    person: int  # 0 je, 1 tu, 2 il/elle, 3 nous, 4 ils/elles
    feminine: bool

    @property
    def plural(self) -> bool:
        return self.person > 2


class Verb(NamedTuple):
    """The English and French forms of one verb."""

    english: str  # base form, third person and past tense, separated by commas
    present: str  # one form per person, separated by spaces
    participle: str
    future: str  # stem


BEINGS = (
    Noun("brother", "brothers", "frère", "frères", False),
    Noun("sister", "sisters", "sœur", "sœurs", True),
    Noun("friend", "friends", "ami", "amis", False),
    Noun("aunt", "aunts", "tante", "tantes", True),
    Noun("child", "children", "enfant", "enfants", False),
    Noun("neighbour", "neighbours", "voisin", "voisins", False),
    Noun("nurse", "nurses", "infirmière", "infirmières", True),
    Noun("bird", "birds", "oiseau", "oiseaux", False),
    Noun("cow", "cows", "vache", "vaches", True),
    Noun("cat", "cats", "chat", "chats", False),
)
THINGS = (
    Noun("book", "books", "livre", "livres", False),
    Noun("car", "cars", "voiture", "voitures", True),
    Noun("hat", "hats", "chapeau", "chapeaux", False),
    Noun("key", "keys", "clé", "clés", True),
    Noun("umbrella", "umbrellas", "parapluie", "parapluies", False),
    Noun("scarf", "scarves", "écharpe", "écharpes", True),
    Noun("tree", "trees", "arbre", "arbres", False),
    Noun("apple", "apples", "pomme", "pommes", True),
)
PRONOUNS = (
    Subject("I", "je", 0, False),
    Subject("you", "tu", 1, False),
    Subject("he", "il", 2, False),
    Subject("she", "elle", 2, True),
    Subject("we", "nous", 3, False),
    Subject("they", "ils", 4, False),
)
# The French forms are masculine, feminine, masculine plural and feminine plural.
STATES = {
    "tired": ("fatigué", "fatiguée", "fatigués", "fatiguées"),
    "happy": ("heureux", "heureuse", "heureux", "heureuses"),
    "old": ("vieux", "vieille", "vieux", "vieilles"),
    "small": ("petit", "petite", "petits", "petites"),
    "sad": ("triste", "triste", "tristes", "tristes"),
    "ready": ("prêt", "prête", "prêts", "prêtes"),
    "proud": ("fier", "fière", "fiers", "fières"),
    "quiet": ("calme", "calme", "calmes", "calmes"),
}
COLOURS = {
    "red": ("rouge", "rouge", "rouges", "rouges"),
    "green": ("vert", "verte", "verts", "vertes"),
    "blue": ("bleu", "bleue", "bleus", "bleues"),
    "white": ("blanc", "blanche", "blancs", "blanches"),
    "black": ("noir", "noire", "noirs", "noires"),
}
MOTIONS = (  # verbs that form the past tense with être
    Verb("arrive, arrives, arrived", "arrive arrives arrive arrivons arrivent", "arrivé", "arriver"),
    Verb("leave, leaves, left", "pars pars part partons partent", "parti", "partir"),
    Verb("come back, comes back, came back", "reviens reviens revient revenons reviennent", "revenu", "reviendr"),
    Verb("stay, stays, stayed", "reste restes reste restons restent", "resté", "rester"),
)
ACTIONS = (  # verbs that form the past tense with avoir
    Verb("see, sees, saw", "vois vois voit voyons voient", "vu", "verr"),
    Verb("buy, buys, bought", "achète achètes achète achetons achètent", "acheté", "achèter"),
    Verb("sell, sells, sold", "vends vends vend vendons vendent", "vendu", "vendr"),
    Verb("look for, looks for, looked for", "cherche cherches cherche cherchons cherchent", "cherché", "chercher"),
    Verb("find, finds, found", "trouve trouves trouve trouvons trouvent", "trouvé", "trouver"),
)
ADVERBS = {
    "present": (("today", "aujourd'hui"), ("every day", "chaque jour")),
    "past": (("yesterday", "hier"), ("on Monday", "lundi")),
    "future": (("tomorrow", "demain"), ("on Monday", "lundi")),
}
TO_BE = {
    "present": ("suis", "es", "est", "sommes", "sont"),
    "past": ("étais", "étais", "était", "étions", "étaient"),
    "future": ("serai", "seras", "sera", "serons", "seront"),
}
TO_HAVE = ("ai", "as", "a", "avons", "ont")
FUTURE = ("ai", "as", "a", "ons", "ont")
ARTICLES = {  # masculine, feminine and plural, and then masculine and feminine before a vowel
    "the": ("le", "la", "les", "l'", "l'"),
    "my": ("mon", "ma", "mes", "mon", "mon"),
    "this": ("ce", "cette", "ces", "cet", "cette"),
    "a": ("un", "une", "des", "un", "une"),
}
PLURAL_ARTICLES = {"the": "the", "my": "my", "this": "these", "a": "some"}
TENSES = ("present", "past", "future")
SEED = 1066  # The corpus is always the same, because it does not depend on the run's seed.


def _vowel(word: str) -> bool:
    """Return whether a French word starts with a vowel sound. The lexicon contains no aspirated h."""
    return word[0] in "aeiouéèêh"


def _join(first: str, second: str) -> str:
    return f"{first}{second}" if first.endswith("'") else f"{first} {second}"


def _noun_phrase(article: str, noun: Noun, plural: bool, colour: str | None = None) -> tuple[str, str]:
    """Return a noun phrase in English and French, such as "this green hat" and "ce chapeau vert"."""
    french = noun.french_plural if plural else noun.french
    form = 2 if plural else int(noun.feminine) + (3 if _vowel(french) else 0)
    phrase = _join(ARTICLES[article][form], french)
    name = noun.english_plural if plural else noun.english
    if colour is not None:
        phrase += f" {COLOURS[colour][2 * plural + noun.feminine]}"
        name = f"{colour} {name}"
    if plural:
        article = PLURAL_ARTICLES[article]
    elif article == "a" and name[0] in "aeiou":
        article = "an"
    return f"{article} {name}", phrase


def _subjects() -> Iterator[Subject]:
    yield from PRONOUNS
    for article, noun, plural in product(("the", "my", "this"), BEINGS, (False, True)):
        english, french = _noun_phrase(article, noun, plural)
        yield Subject(english, french, 4 if plural else 2, noun.feminine)


def _sentence(subject: Subject, english: str, french: str) -> tuple[str, str]:
    """Combine a subject and its predicates into an English and a French sentence."""
    start = "j'" if subject.french == "je" and _vowel(french) else subject.french
    pair = f"{subject.english} {english}.", f"{_join(start, french)}."
    return pair[0][0].upper() + pair[0][1:], pair[1][0].upper() + pair[1][1:]


def _states(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield sentences such as "I am tired", "she was very happy" or "they will not be ready"."""
    for tense, (state, forms), how in product(TENSES, STATES.items(), ("", "very", "not")):
        being = TO_BE[tense][subject.person]
        if how == "not":
            being = _join("n'" if _vowel(being) else "ne", being) + " pas"
        adjective = forms[2 * subject.plural + subject.feminine]
        french = f"{being} très {adjective}" if how == "very" else f"{being} {adjective}"
        many = subject.plural or subject.person == 1
        present = "am" if subject.person == 0 else "are" if many else "is"
        english = {"present": present, "past": "were" if many else "was", "future": "will"}[tense]
        if how == "not":
            english += " not"
        if tense == "future":
            english += " be"
        if how == "very":
            english += " very"
        yield _sentence(subject, f"{english} {state}", french)


def _conjugate(subject: Subject, verb: Verb, tense: str, with_be: bool) -> tuple[str, str]:
    base, third, past = verb.english.split(", ")
    if tense == "present":
        return third if subject.person == 2 else base, verb.present.split()[subject.person]
    if tense == "future":
        return f"will {base}", verb.future + FUTURE[subject.person]
    if not with_be:
        return past, f"{TO_HAVE[subject.person]} {verb.participle}"
    agreement = ("e" if subject.feminine else "") + ("s" if subject.plural else "")
    return past, f"{TO_BE['present'][subject.person]} {verb.participle}{agreement}"


def _motions(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield sentences such as "she arrives", "he came back yesterday" or "we will leave on Monday"."""
    for verb, tense in product(MOTIONS, TENSES):
        english, french = _conjugate(subject, verb, tense, with_be=True)
        for when, quand in (("", ""), *ADVERBS[tense]):
            yield _sentence(subject, f"{english} {when}".strip(), f"{french} {quand}".strip())


def _actions(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield sentences such as "she sees the tree", "he bought a red hat" or "I will look for these keys"."""
    objects = product(ARTICLES, THINGS, (False, True), (None, *COLOURS))
    phrases = [_noun_phrase(article, noun, plural, colour) for article, noun, plural, colour in objects]
    for verb, tense in product(ACTIONS, TENSES):
        english, french = _conjugate(subject, verb, tense, with_be=False)
        for thing, chose in phrases:
            yield _sentence(subject, f"{english} {thing}", f"{french} {chose}")


@cache  # Generating the sentences takes a second.
def sentences(size: int) -> list[tuple[str, str]]:
    """Return English-French pairs, spread evenly over the three kinds of predicate. All calls return the same pairs.

    Raises:
        DataError: `size` is not between 3 and the number of sentences in the grammar.
    """
    chosen: list[tuple[str, str]] = []
    generator = random.Random(SEED)
    subjects = list(_subjects())
    for number, kind in enumerate((_motions, _states, _actions)):
        own = [pair for subject in subjects for pair in kind(subject)]
        generator.shuffle(own)
        # If there are too few sentences of one kind, the next kinds fill the gap.
        chosen += own[: (size - len(chosen)) // (3 - number)]
    if size < 3 or len(chosen) < size:
        raise DataError(f"size must be between 3 and {len(chosen)} pairs for this grammar, got {size}")
    generator.shuffle(chosen)
    return chosen


class ToyGrammar(CarvedData):
    """Sentence pairs from a small grammar. They are generated, so no files are needed.

    Args:
        size: total number of pairs.
        val_size: number of validation pairs.
        test_size: number of test pairs.
        **kwargs: arguments of `TranslationData`.

    Raises:
        DataError: `size` is below 3 or exceeds the number of sentences in the grammar.
    """

    LANGUAGES = ("en", "fr")

    def __init__(self, size: int = 6000, val_size: int = 300, test_size: int = 300, **kwargs: Any) -> None:
        super().__init__(val_size, test_size, **kwargs)
        self.size = size

    def pool(self) -> Pairs:
        pairs = sentences(self.size)
        return pairs if self.source == "en" else [(french, english) for english, french in pairs]
