"""FedScale's 20 federated data sets: what they hold, who publishes them, and which task reads them.

Counts are those of Lai et al. 2022 (FedScale), table 5. Its repository (SymbioticLab/FedScale,
benchmark/dataset) says the same of the training sets, and gives sources and the sizes of its
archives; of some, these hold only which client has which sample. A licence is what the publisher
says of the data; "unknown" where no statement of the publisher's was found. FedScale's own terms:
research purposes only.
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set of the catalogue.

    Attributes:
        name: As in table 5.
        domain: "vision", "language", "speech" or "other": what the samples are about.
        clients: Number of clients.
        samples: Number of samples, rounded as published.
        example_task: What it is used for, by the paper.
        source: Where its publisher has it.
        licence: Of the data, or "unknown".
        archive: Size of FedScale's archive, as its download script says; "unknown" if it does not.
        tasks: Tasks of this package that read these data, in the forms that their READMEs name:
            reddit reads its publisher's or LEAF's files, not FedScale's archive.
    """

    name: str
    domain: str
    clients: int
    samples: int
    example_task: str
    source: str
    licence: str
    archive: str
    tasks: tuple[str, ...] = ()


_CLASSIFY, _NEXT_WORD, _SEQUENCE = "classification", "word prediction", "sequence prediction"

DATA_SETS = (
    DataSet(
        "iNature",
        "vision",
        2_295,
        193_000,
        _CLASSIFY,
        "https://github.com/visipedia/inat_comp (iNaturalist 2019)",
        "non-commercial research and education; images not to be passed on",
        "11 MB (mapping alone)",
    ),
    DataSet(
        "FEMNIST",
        "vision",
        3_400,
        640_000,
        _CLASSIFY,
        "https://www.nist.gov/srd/nist-special-database-19",
        "NIST's terms for its data",
        "327 MB",
        ("femnist",),
    ),
    DataSet(
        "OpenImage",
        "vision",
        13_771,
        1_300_000,
        "classification, object detection",
        "https://storage.googleapis.com/openimages/web/index.html",
        "annotations CC BY 4.0; images listed as CC BY 2.0, each to be verified",
        "66 GB",
        ("openimage",),
    ),
    DataSet(
        "Google Landmark",
        "vision",
        43_484,
        3_600_000,
        _CLASSIFY,
        "https://github.com/cvdfoundation/google-landmark",
        "annotations CC BY 4.0; images CC BY without ND, each to be verified",
        "954 MB (too little for the images)",
    ),
    DataSet(
        "Charades",
        "vision",
        266,
        10_000,
        "action recognition",
        "https://prior.allenai.org/projects/charades",
        "its own, in license.txt of the data",
        "15 GB",
    ),
    DataSet(
        "VLOG",
        "vision",
        4_900,
        9_600,
        "classification, object detection",
        "https://web.eecs.umich.edu/~fouhey/2017/VLOG/index.html",
        UNKNOWN,
        UNKNOWN,
    ),
    DataSet(
        "Waymo Motion",
        "vision",
        496_358,
        32_500_000,
        "motion prediction",
        "https://waymo.com/open",
        "Waymo's licence agreement, to be accepted; use restricted",
        "74 MB (mapping alone)",
    ),
    DataSet(
        "Europarl",
        "language",
        27_835,
        1_200_000,
        "text translation",
        "https://www.statmt.org/europarl/",
        "none stated; the publisher knows of no copyright restrictions",
        "458 MB",
    ),
    DataSet(
        "Blog Corpus",
        "language",
        19_320,
        137_000_000,
        _NEXT_WORD,
        "https://u.cs.biu.ac.il/~koppel/BlogCorpus.htm",
        "its own: free for non-commercial research",
        "833 MB",
    ),
    DataSet(
        "Stackoverflow",
        "language",
        342_477,
        135_000_000,
        "word prediction, classification",
        "https://www.kaggle.com/stackoverflow/stackoverflow",
        "CC BY-SA 3.0",
        "13 GB",
    ),
    DataSet(
        "Reddit",
        "language",
        1_660_820,
        351_000_000,
        _NEXT_WORD,
        "https://files.pushshift.io/reddit/",
        UNKNOWN,
        "25 GB",
        ("reddit", "reddit_albert"),
    ),
    DataSet(
        "Amazon Review",
        "language",
        1_822_925,
        166_000_000,
        "classification, word prediction",
        "https://jmcauley.ucsd.edu/data/amazon/",
        UNKNOWN,
        "11 GB",
        ("amazon_review",),
    ),
    DataSet(
        "CoQA",
        "language",
        7_685,
        116_000,
        "question answering",
        "https://stanfordnlp.github.io/coqa/",
        "several, by the source of the text",
        "7.9 MB",
    ),
    DataSet(
        "LibriTTS",
        "speech",
        2_456,
        37_000,
        "text to speech",
        "http://www.openslr.org/60/",
        "CC BY 4.0",
        "78 GB",
    ),
    DataSet(
        "Google Speech",
        "speech",
        2_618,
        105_000,
        "speech recognition",
        "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
        "CC BY 4.0",
        "2.3 GB",
        ("google_speech",),
    ),
    DataSet(
        "Common Voice",
        "speech",
        12_976,
        1_100_000,
        "speech recognition",
        "https://commonvoice.mozilla.org/en/datasets",
        "CC0; not to be mirrored",
        "87 GB",
    ),
    DataSet(
        "Taxi Trajectory",
        "other",
        442,
        1_700_000,
        _SEQUENCE,
        "https://archive.ics.uci.edu/dataset/339",
        UNKNOWN,
        "504 MB",
    ),
    DataSet(
        "Taobao",
        "other",
        182_806,
        20_900_000,
        "recommendation",
        "https://tianchi.aliyun.com/dataset/dataDetail?dataId=56",
        UNKNOWN,
        "185 MB",
    ),
    DataSet(
        "Puffer Streaming",
        "other",
        121_551,
        15_400_000,
        _SEQUENCE,
        "https://puffer.stanford.edu/data-description/",
        UNKNOWN,
        "2.0 GB",
    ),
    DataSet(
        "Fox Go",
        "other",
        150_333,
        4_900_000,
        "reinforcement learning",
        UNKNOWN,
        UNKNOWN,
        "1.7 GB",
    ),
)
