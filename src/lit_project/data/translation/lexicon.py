"""The words of the small grammar: nouns, verbs and adjectives with their English and French forms."""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun, English and French, in both numbers."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    feminine: bool


class Subject(NamedTuple):
    """Who does something."""

    english: str
    french: str
    person: int  # 0 je, 1 tu, 2 il/elle, 3 nous, 4 ils/elles
    feminine: bool

    @property
    def plural(self) -> bool:
        """Whether it is more than one."""
        return self.person > 2


class Verb(NamedTuple):
    """A verb in the forms that the grammar needs."""

    english: tuple[str, str, str]  # base, third person, past
    present: tuple[str, str, str, str, str]  # by person
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
# English: masculine, feminine, masculine plural, feminine plural
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
MOTIONS = (  # with être in the past
    Verb(
        ("arrive", "arrives", "arrived"), ("arrive", "arrives", "arrive", "arrivons", "arrivent"), "arrivé", "arriver"
    ),
    Verb(("leave", "leaves", "left"), ("pars", "pars", "part", "partons", "partent"), "parti", "partir"),
    Verb(
        ("come back", "comes back", "came back"),
        ("reviens", "reviens", "revient", "revenons", "reviennent"),
        "revenu",
        "reviendr",
    ),
    Verb(("stay", "stays", "stayed"), ("reste", "restes", "reste", "restons", "restent"), "resté", "rester"),
)
ACTIONS = (  # with avoir
    Verb(("see", "sees", "saw"), ("vois", "vois", "voit", "voyons", "voient"), "vu", "verr"),
    Verb(("buy", "buys", "bought"), ("achète", "achètes", "achète", "achetons", "achètent"), "acheté", "achèter"),
    Verb(("sell", "sells", "sold"), ("vends", "vends", "vend", "vendons", "vendent"), "vendu", "vendr"),
    Verb(
        ("look for", "looks for", "looked for"),
        ("cherche", "cherches", "cherche", "cherchons", "cherchent"),
        "cherché",
        "chercher",
    ),
    Verb(("find", "finds", "found"), ("trouve", "trouves", "trouve", "trouvons", "trouvent"), "trouvé", "trouver"),
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
ARTICLES = {  # masculine, feminine, plural, before a vowel: masculine, feminine
    "the": ("le", "la", "les", "l'", "l'"),
    "my": ("mon", "ma", "mes", "mon", "mon"),
    "this": ("ce", "cette", "ces", "cet", "cette"),
    "a": ("un", "une", "des", "un", "une"),
}
PLURAL_ARTICLES = {"the": "the", "my": "my", "this": "these", "a": "some"}
