"""Tokens of tag soup: pieces of HTML in any order are pages that show how a parser mends."""

import re


def tokens(vocabulary: str) -> list[str]:
    return [token.encode().decode("unicode_escape") for token in re.split(r"  +|\n", vocabulary) if token]


# Tokens of tag soup, two spaces between them.
IMAGES = tokens(r"""
    <img src="a.png" alt="x">  <img>  <IMG alt>  <img src=b alt='' / >  <img src='http://[' alt=q>  <img/src=1/alt=2>
    <img src=a src=b>  <img src alt=>  <img =a b==c src = 'x' alt>  <img data-src=1 src=data:, data-src=2 alt=a>
    <img srcset=', a 1x, b' alt=a=b>  <img\nsrc\n=\n"//h/p" data-lazy-src=z>  <img alt=a\0b\r\nc src=/x\r>
    <img alt='&copy=1&copy &amp;&#0;&#x80;&notin;&notit;' src=?a&amp;b>  <img alt=\u00e9 src=\u00e9.png>
    <img data-original=o data-srcset=s>  <img src=" " data-src=d>
""")
HTML = tokens(r"""
    <div>  </div>  <p>  </p>  <b>  </b>  <i a=1>  </i>  <a href=x>  </a>  <table>  <tr>  <td>  </td>  </tr>  </table>
    <caption>  text  <ul>  <li>  </ul>  <select>  <option>  </select>  <button>  </button>  <form>  </form>  <br>  </br>
    <body>  </body>  <html>  </html>  <head>  </head>  <h1>  </h1>  <object>  </object>  <picture>  <source srcset=x>
    <input>  <span>  </span>  <br/>  <div/>  &amp  \0  <  <3  </>  </ x>
""")
BASES = tokens("<base href=q>  <base>  <base href='//b/c/'>  <base href=javascript:x>")
TEXTS = tokens(r"""
    <!-- c -->  <!--  -->  --!>  <!-->  <!--->  -  !  <!doctype html>  <?x>  <![CDATA[  ]]>  <textarea>  </textarea>
    <title>  </title >  <style>  </style/>  <script>  </script>  <SCRIPT/>  </script  </scripts>  <noscript>
    </noscript>  <iframe>  </iframe>  <xmp>  </xmp>  <noembed>  </noembed>  <noframes>  </noframes>  <script><!--
    <!--<script>  <plaintext>  <a b='  <a b="  '  "  =  >  />  <p">  <p a=b/>  <p a="'"b='"'>  a\0b
""")
TEMPLATES = tokens(
    "<template>  </template>  <template/>  <template><p>  </template>  <title>  </title>  <style>  </style>"
)
FRAMESETS = tokens(
    r"<frameset>  </frameset>  <frame>  <noframes>  </noframes>  <p>  <div>  <!-- c -->  \0  text  <input>  <body>"
)
FOREIGN = tokens(r"""
    <svg>  </svg>  <svg/>  <math>  </math>  <math/>  <font>  <font color=x>  <![CDATA[ <img> ]]>  <title>text</title>
    <desc/>  <svg><g><path d=x/></g></svg>  <svg><path></svg>
    <svg><title><b>x</b></title><style><image/></style></svg>
    <svg><image src=a></svg>  <math><mi>x</mi><mo><b>x</b><mglyph/></mo></math>
    <svg><foreignObject><div><img alt=in><style><img></style></div></foreignObject></svg>
    <svg><desc><template><img></template></desc><style><image/></style></svg>
    <math><annotation-xml encoding=Text/HTML><style><img></style></annotation-xml><style>x</style></math>
    <math><annotation-xml><svg><style>x</style></svg></annotation-xml></math>
""")
WITHOUT_TABLES = [token for token in HTML if token.strip("</>") not in ("table", "tr", "td", "caption")]
