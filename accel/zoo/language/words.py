"""The words that the language tasks are written with, each one token of the vocabulary."""

NOUNS = tuple(
    """
    acorn amber anchor apple arrow badge bacon banjo basil beach beard bench berry blade board
    bonus brick brush bucket cabin cable camel candy cargo cedar chain chair chalk cheese cherry
    clock cloud coast comet coral couch crane crown curve daisy dance desert diary donkey eagle
    earth elbow engine fabric falcon fence ferry field flame flute forest fossil frost garden glass
    globe grape guitar hammer harbor hazel honey horse hotel island ivory jacket jewel judge juice
    kayak kettle knife ladder lemon lever lilac lobby lotus magnet maple marble meadow melon metal
    mirror motor mouse music napkin ocean olive onion orbit otter paddle panda paper pearl pencil
    piano pilot planet plaza poppy prism quartz quilt radar radio raven ribbon river robin rocket
    """.split()  # noqa: SIM905 - a hundred and more quoted words would fill a page
)
FIRST_NAMES = tuple(
    """
    Ada Alma Anton Asta Bela Boris Cora Cyril Dana Dora Edgar Elsa Emil Enzo Erna Fabio Freya Gina
    Greta Hanna Hugo Ida Ilja Irma Jonas Jorge Karla Kilian Lena Linus Lotte Malte Mira Nadja Nils
    Olga Oskar Paula Pia Quentin Rosa Ruben Selma Sven Tilda Timo Ulla Viktor
    """.split()  # noqa: SIM905
)
LAST_NAMES = tuple(
    """
    Abel Adler Bach Becker Berg Brandt Conrad Dahl Decker Ebert Engel Falk Fink Frank Graf Gross
    Haas Hahn Horn Jansen Jung Kaiser Keller Klein Kraus Lang Lorenz Maurer Moser Nagel Neumann
    Otto Peters Pohl Rauch Reuter Roth Sauer Schulz Simon Stark Stein Thiel Ulrich Vogt Wagner
    Winter Ziegler
    """.split()  # noqa: SIM905
)
