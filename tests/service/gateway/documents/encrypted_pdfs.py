"""PDF files that are encrypted, made with pypdf: compressed, in base 85.

The first two open without a password, but may not be printed. The last needs one.
"""

from __future__ import annotations

import zlib
from base64 import b85decode

_AES_256 = (
    "c-oCrJC7Vi5KhrZNCe1)baEj~zaL_C=<M4w7TCAk;!92-Rd-jP7w&dWvvZ4W5rKpVEF@9~1o#gS5h0P{1O!BoVIC"
    "rL00BZmqGs=IS!oHFnV|cds;{cQuBwgE_Re$Sd0lNh`swTMD#18w;+xfAP}QTh$)^chHZVnt;FXe^Lnt{$3mQy_E"
    "=w1ac0x%3E_m&;F~vdg$vT%3%49{6YO~thtZ<rpX1NmKwL2%s>Jc2`tg5dxr_+v!s(yKrXY7D!GTdXYueho;*DKJ"
    "$QFB<Gaj>3yZ^c3XXRNBej(Gx?o7)tH(`$ufE=Y=1@8PUDZ4+_zK06I%v{(pcF1YEVT&EpQyBV_!lxSPpuEjTN@q"
    "5Oq9-qc;vF$-"
    "R@nx9dB3Atp9?h|vBv@gwD=e?z^su|dJn#R{x)$NM`h=;Ezxd;`xBfnuKl}aT`wt$x_xUgP@7=sx|M>9HlfT~h@S"
    "C6idiBezFCNb?-PqcG<AZm{pWb_-"
    "{Qld4FMmG$(N~Y3`u36v^Y>rCcOE`7`r+;UYkk~v>hlcTN(TGPkW9=jbCHJDBc^50!8#cv$u&9ZsBY?U2h$8~uIg"
    "Pja1v1G0MT<^c*-"
    "aQ2moV*<_2sj&LXIwR8~n!W58>doO8e>MxKr4N?;L*OD=T?NhvL479K$e&ppz$+++ili`61&t&LRLNeM<l_9jUyi"
    "%|lMFj0B~#sm3B6%2ZfxfF#lNQ6|PQp%YWJ=tJzL1ZBdC1Q<t&|m(}q9(>&K3{E}cDIJ}z5wd&CheZ!v^ToW>aF2"
    ";UoC}F@}hjk-SG}PBj`8nznk458=#gEHT9Ly##tUQCsHNxO!<~zBA|*UqcnwQ&o%X!<DAn;ErgV#=!GB}C?ys!Ag"
    "l#ph|iMbC2Iv-6mU8g?Sm&aX-"
    "F?inj&fL6}Q5A#QvlsY>%lEBnat3@!Zl~SedOQ{fmKYlufCm)%L#KVyQUu6<<Eg8lwy=Y>5eKjK!bn5)(qLV@|GN"
    "Qi?T9>9B^;z*@u1s$JK@<OthEO^+vcky5Vrnx<pwtfj9_OT)zZdYdN2Kq{)4=zK8QxPn4zk4{8g2#s39=KnFF88e"
    ")w_RdMi+{Lt*b<lPT;e_Bci8qG3JJml<l8br"
)
_AES_128 = (
    "c-oCqJ!lj`6h_MlXewLB$d$VDzq5Fp#N-"
    "Y|Lyo%`1PNhwXEr&x?1sI$kVHGN5MyH{RtkcsXk(MYPQ+5wMmy0~1&fHObarz|4%WimWtsQQd*Aowy?K@9Wa9)r$"
    "w1}H*S8-"
    "4h6twN6;Q1LubHK~ADIkRDT{<wOd%eVkOUzWS`(j8BsKGijN^#Ki20m|m<byB0gZGhP)INfkRSRrP^$rx=$x4hDa"
    "@=b8|XFFg6RQoBJC#@V&I+c=pMWbnR9HxxuH;63Y}0^b<+i~!vS;d)=&WZrxx(0jP9s2>8evf?iH9oKOj!aYnfi!"
    "&mzZ_$23xxQL(^~?{d4(<(gQN*d7!G>S!}(mh^c^KW7A9yC2%Z%t3eJGpc6_E$^)9t{B^i)DVjpV!2?F1-"
    "l3(%J+LVGinKpjU1UDC+lPP4s3rs{Q20Wnaxpt|If=GcjvCY*cf?m<2C%fedkR$f9=+*_U5C<8_jRO-"
    "rwAMzV&eB-Or`#qqHs$K0V&~^z8J=_ft=9A3c=o4yXqi_(K`YLgvbp{|32WB3%I>BLNG9PXgk~)#+MyZ@jiuiB_2"
    "g-"
    "ZZRA9J9cu#BiyCKuRJxW?J~1YC(A@I7du~K!=7<ts`kL=TsP^LK!F(6Ib?&j)ljVazzXYjnO(b0gs|cW6HEtEFwg"
    "PF*DpS<2xOO1w+W$B93E)Fp_!m8bwdrRu5L=eY;p+$s6cRrqT4WNphzt=#AIgvt<9EVz>QmyVQU?1i6vz8T(CJ%}"
    "fjslmP8L&>fL-7{fgby9-k6BzqXfw2b+rgb{*E7-c~TW4Mg*VLzLxPS<2bZ`+-"
    "9<5KooX=)+ex!UKFIE8qyo^%sal~L&Co+(YFp#r;US2RMdWy19qk+AkZE^gN9NtCTETj=jjP0y;#7KM{sfJ&u4-"
    "2i_9)gDK?"
)
_LOCKED = (
    "c-oCrJ&R;T6pb`^xrks;fs-ugt6Sf-G^4va-K^*`?X(WavO#^^n(bxgz2Wui{X!Hp6bv-"
    "+Hz=6N`U8waFxYG}*GMr?6jQygXQpjv1N(JQb*k<;b?-e@JJY?%%kYY-cAoz9!{Z7VXKlPwjYd^H?b^Id*s+oK)+"
    "KF|E67ETph9#2&VdkU6Zlko^nf{KF10f{qbpix+7W`2S?pH3yA?KhU=|w+Z$CIiR!_qbE~@%kyKH&}RsF_1FW60{"
    "XyXC9wGk?}La&8B9Jfc+83!A<4>khSe`;0r4b1a!wY^U&oIV4BSuaSdKEOr0>=JPeF_V@~v>E`@7u@uxvo<|8{eq"
    "blO0*qKxAgUv{=it(vt{g8(*dN6uZ9J#wCd}4d>8w93L7kDgXK+Zj{4ios9}B4cNk8p&kpY_zkUAQzrK1R9^ZQ5("
    "tDTxoZox(=SLqtqh9-9dima4FMa*oZ-0FJ<rm+4{)zwl=A~brYWv-"
    "%AASGpi|_yV@b^bgo*i_~sm>MchT<X9R2F8|+CtNK%9QZR8!Nn^^30EW@<~1GLz6?7t9qY}OeB{CgNm!HolDk$^b"
    "oCbWRrjnlrlx<tTngUD8-"
    "HA$tML#_#!M1AZ5x$3Q*E3iy3n?E?RGd2uWsY!#iv=z$$VuRuVhe5QEehW0Z&zlz@<}kpPk#igr*!F4+hkG-_M8B"
    "wwRKTLO7J(xMWCCY7^rAqQ`VW=~cgnDzO5bY<D!9^V}rUhlPO{}h{H(+yT%8P5*ox=>PF*k#tAOxPL0FzNoC?2qY"
    "o70xqc$~<TbT$zmC@u<-Ys&F=#Y~s-yO^NWN-B2x0*?7$h)sYW{AQ~wt2j!JX#mLNKQk*9nBo-k-"
    "DooKzFH01tvQ%IV(fI-"
    "qc_>OtO*B*NPRRKfz15NWg{Zyr(&zvIgYk+}u(g}l`F@9`;>=Zi{bNQG9V={&0bPXEO0&kOBioo2TbK~Ag-"
    "PYNFa_I~mKz#<7v{&<tvo%OKSVlmebBZ&lV?}>^`^88&c}Q7GK`$knXCjkkW<l$L`IXq5t5CW-"
    "oM@dvxVN2ag(|Sr#-V5ufw7bUB4<EaObL>o$>yp`UlKGgRK"
)
AES_256, AES_128, LOCKED = (
    zlib.decompress(b85decode(packed)) for packed in (_AES_256, _AES_128, _LOCKED)
)
